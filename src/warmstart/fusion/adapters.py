"""Low-rank adapters of one frozen network: what a personal model adds to the weights of a large one.

    W_i = W + B_i A_i,    A_i [r, in], B_i [out, r]

B G and G^-1 A are the same adapter for every G of GL(r), so factors of adapters trained apart mean nothing beside each
other, and there is no finite set of orders to search. The product is what is fused. Adapters are mixed,

    sum_i w_i B_i A_i = [B_1 ... B_n] diag(w) [A_1; ...; A_n],

and the best adapter of rank r (Eckart and Young) comes from a singular value decomposition between orthonormal bases
of the pool's columns and rows; no matrix of the size of a layer is made. Factors are returned in one canonical form:
B = U S^1/2, A = S^1/2 V', the largest entry of each column of U positive.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from warmstart.core import InputError, Params
from warmstart.fusion.network import Network

DOWN, UP = "lora_A", "lora_B"
PREFIX, SUFFIX = "base_model.model.", ".weight"


class Bases(NamedTuple):
    """Of one layer: orthonormal bases of all columns and rows of the pool's products, and the factors in them."""

    columns: Tensor  # [out, k]
    rows: Tensor  # [l, in]
    up: Tensor  # [k, n, r] B_i is columns @ up_i
    down: Tensor  # [n, r, l] A_i is down_i @ rows


def layers(params: Params) -> dict[str, tuple[str, str]]:
    """Name of the layer -> names of its A and B; empty where the tensors are no adapter.

    >>> layers({"base_model.model.q.lora_A.weight": torch.zeros(2, 8), "q.lora_B": torch.zeros(8, 2)})
    {'q': ('base_model.model.q.lora_A.weight', 'q.lora_B')}
    """
    found: dict[str, dict[str, str]] = {}
    for name in params:
        layer, _, part = name.removesuffix(SUFFIX).rpartition(".")
        if part not in (DOWN, UP):
            continue
        found.setdefault(layer.removeprefix(PREFIX), {})[part] = name
    pairs = {layer: (parts[DOWN], parts[UP]) for layer, parts in sorted(found.items()) if len(parts) == 2}
    if found and 2 * len(pairs) != len(params):
        odd = min(set(params) - {name for pair in pairs.values() for name in pair})
        raise InputError(f"adapters of pairs {DOWN} and {UP} alone", repr(odd), "leave other tensors out")
    return pairs


def attach(base: nn.Module, params: Params) -> Network:
    """The frozen network with an adapter as its only parameters; `params` is an adapter, for its names and shapes."""
    frozen = {name: value.detach() for name, value in (*base.named_parameters(), *base.named_buffers())}
    weights = {}
    for layer, (down, up) in layers(params).items():
        name = f"{layer}.weight"
        if name not in frozen or frozen[name].dim() != 2:
            expected = f"a linear layer '{layer}' in {type(base).__name__}"
            raise InputError(expected, "none", "pass the network that the adapters were trained on")
        shape = [params[up].shape[0], params[down].shape[1]]
        if list(frozen[name].shape) != shape or params[up].shape[1] != params[down].shape[0]:
            got = f"factors {list(params[up].shape)} and {list(params[down].shape)}"
            raise InputError(f"an adapter of '{layer}', {list(frozen[name].shape)}", got, "pass its own network")
        weights[name] = (down, up)

    def apply(adapter: Params, x: Tensor) -> Tensor:
        changed = {name: frozen[name] + adapter[up] @ adapter[down] for name, (down, up) in weights.items()}
        out: Tensor = torch.func.functional_call(base, {**frozen, **changed}, (x,))
        return out

    return Network(base, "", apply, _no_head, tuple(params))


def _no_head(params: Params, x: Tensor) -> Tensor:
    raise InputError("models with a last layer of their own", "adapters", "use a way of fusing that is for adapters")


def bases(params: Params) -> dict[str, Bases]:
    """Of each layer of a stack of adapters [n, ...], in double precision."""
    found = {}
    for layer, (down, up) in layers(params).items():
        a, b = params[down].double(), params[up].double()  # [n, r, in], [n, out, r]
        columns, right = torch.linalg.qr(b.movedim(0, 1).flatten(1))  # [out, n r]
        rows, left = torch.linalg.qr(a.flatten(0, 1).mT)
        n, r = a.shape[:2]
        found[layer] = Bases(columns, rows.mT.contiguous(), right.reshape(-1, n, r), left.mT.reshape(n, r, -1))
    return found


def mix(spaces: dict[str, Bases], like: Params, weights: Tensor) -> Params:
    """Adapters [q, ...], each the best of the rank of `like` for the sum of the pool's products with weights [q, n]."""
    made: Params = {}
    for layer, (down, up) in layers(like).items():
        space, rank = spaces[layer], like[down].shape[0]
        core = torch.einsum("knr,qn,nrl->qkl", space.up, weights.double(), space.down)
        b, a = _canonical(core, rank)
        made[up], made[down] = (space.columns @ b).to(like[up]), (a @ space.rows).to(like[down])
        # the sign is of whole columns, not of coordinates
        sign = _sign(made[up])
        made[up], made[down] = made[up] * sign[:, None], made[down] * sign[..., None]
    return {name: made[name] for name in like}


def _canonical(product: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The balanced factors of the best approximation of rank `rank`; missing directions are zero."""
    u, s, v = torch.linalg.svd(product, full_matrices=False)
    kept = min(rank, s.shape[-1])
    root = s[..., :kept].sqrt()
    b, a = u[..., :kept] * root[..., None, :], root[..., None] * v[..., :kept, :]
    missing = rank - kept
    return nn.functional.pad(b, (0, missing)), nn.functional.pad(a, (0, 0, 0, missing))


def _sign(b: Tensor) -> Tensor:
    """[..., r] that makes the largest entry of each column positive."""
    largest = b.gather(-2, b.abs().argmax(-2, keepdim=True)).squeeze(-2)
    return torch.where(largest < 0, -1.0, 1.0).to(b)


def canonical(params: Params) -> Params:
    """A stack of adapters in the one form that all factors of a product share. The functions stay what they are."""
    n = len(next(iter(params.values())))
    one = {name: value[0] for name, value in params.items()}
    alone = [
        mix(bases({name: value[i, None] for name, value in params.items()}), one, torch.ones(1, 1)) for i in range(n)
    ]
    return {name: torch.cat([adapter[name] for adapter in alone]) for name in params}


def gram(params: Params) -> Tensor:
    """[n, n] inner products of the products, <B_i A_i, B_j A_j> = sum (B_i' B_j) * (A_i A_j')."""
    parts = []
    for down, up in layers(params).values():
        rows, columns = (torch.einsum("nrd,msd->nmrs", f, f) for f in (params[down].double(), params[up].double().mT))
        parts.append((rows * columns).sum((-2, -1)))
    return torch.stack(parts).sum(0)
