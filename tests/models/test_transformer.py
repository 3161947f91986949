"""The transformer against torch's own encoder, and what padding and order do."""

import pytest
import torch
from torch import nn
from torch.func import grad, jvp

from warmstart.core import Columns, InputError, functional
from warmstart.core.trees import dot
from warmstart.models.mlp import seeded
from warmstart.models.transformer import Shape, TransformerNet, wave

SHAPE = Shape(width=12, layers=2, views=3, wider=2)
COLUMNS = Columns(bag=(9,))


def network(outputs=2, heads=1):
    with seeded(0):
        module = TransformerNet(COLUMNS, SHAPE, outputs, heads).double()
        for name, value in module.named_parameters():
            if "norm" in name:
                nn.init.normal_(value)  # else scales and shifts are 1 and 0, and could be anywhere
    return module


def rows(*texts):
    return {"bag": torch.tensor(texts).unsqueeze(1)}


def test_it_is_the_encoder_of_torch():
    ours, width = network(), SHAPE.width
    layer = nn.TransformerEncoderLayer(
        width, SHAPE.views, SHAPE.wider * width, 0.0, "gelu", batch_first=True, norm_first=True
    )
    with pytest.warns(UserWarning, match="nested_tensor"):
        theirs = nn.TransformerEncoder(layer, SHAPE.layers, nn.LayerNorm(width)).double()
    for own, block in zip(ours.blocks, theirs.layers, strict=True):
        block.self_attn.in_proj_weight.data = own.asked.weight.data
        block.self_attn.in_proj_bias.data.zero_()
        pairs = [(own.taken, block.self_attn.out_proj), (own.up, block.linear1), (own.down, block.linear2)]
        for mine, other in [*pairs, (own.norm, block.norm1), (own.norm_alone, block.norm2)]:
            other.load_state_dict(mine.state_dict())
    theirs.norm.load_state_dict(ours.norm.state_dict())
    x = rows([2, 3, 4, 8, 1], [5, 2, 0, 0, 0], [7, 0, 0, 0, 0])
    codes = x["bag"][:, 0]
    start = ours.table(codes)
    out = theirs(start + wave(5, start), src_key_padding_mask=codes == 0)
    mean = torch.stack([out[i, :n].mean(0) for i, n in enumerate((5, 2, 1))])
    torch.testing.assert_close(ours.features(x), mean)


def test_padding_says_nothing_and_order_does():
    ours = network()
    short, padded, turned = (ours(rows(text)) for text in ([2, 3, 4], [2, 3, 4, 0, 0, 0], [4, 3, 2]))
    torch.testing.assert_close(short, padded)
    assert (short - turned).abs().max() > 0.01
    assert torch.equal(ours(rows([0, 0])), ours.head.bias[None])  # an empty text has no words to average


def test_slopes_are_finite_differences():
    model, x = functional(network(3, 2)), {**rows([2, 3, 0], [4, 4, 8]), "head": torch.tensor([1, 0])}
    draw = torch.Generator().manual_seed(1)
    along = {name: torch.randn(value.shape, generator=draw).double() for name, value in model.params.items()}

    def loss(params):
        return (model.apply(params, x) * torch.tensor([[1.0, -2.0, 0.5], [0.3, 1.0, 2.0]]).double()).sum()

    def moved(step):
        return loss({name: value + step * along[name] for name, value in model.params.items()})

    wanted = (moved(1e-5) - moved(-1e-5)) / 2e-5
    torch.testing.assert_close(dot(grad(loss)(model.params), along), wanted, rtol=1e-6, atol=0)
    torch.testing.assert_close(jvp(loss, (model.params,), (along,))[1], wanted, rtol=1e-6, atol=0)


def test_every_row_takes_its_own_head():
    ours, text = network(2, 3), [2, 3]
    out = ours({**rows(text, text), "head": torch.tensor([2, 0])})
    whole = ours.head(ours.features(rows(text)))[0]
    torch.testing.assert_close(out, torch.stack([whole[4:], whole[:2]]))


@pytest.mark.parametrize(
    ("columns", "shape", "words"),
    [
        (Columns(1, bag=(9,)), SHAPE, "rows of one text"),
        (Columns(bag=(9, 9)), SHAPE, "2 bags"),
        (COLUMNS, Shape(width=10, views=4), "a multiple of 8"),
        (COLUMNS, Shape(layers=0), "layers"),
        (COLUMNS, Shape(views=0), "whole numbers above zero"),
        (COLUMNS, Shape(width=-16, views=-1), "whole numbers above zero"),
        (COLUMNS, Shape(width=16.0), r"whole numbers above zero, got Shape\(width=16\.0"),
    ],
)
def test_what_it_cannot_read_is_said(columns, shape, words):
    with pytest.raises(InputError, match=words):
        TransformerNet(columns, shape)
