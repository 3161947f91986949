import pytest
import torch

from warmstart.core import InputError
from warmstart.engine.device import choose_device, exact_products, fast_products


def test_auto_takes_cuda_where_there_is_one():
    assert choose_device().type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert choose_device("cpu") == torch.device("cpu")


@pytest.mark.parametrize("name", ["gpu", "", "cuda:x", "mps", "meta", "cpu,cuda"])
def test_other_names_are_refused_with_those_there_are(name):
    with pytest.raises(InputError, match="auto, cpu or cuda"):
        choose_device(name)


def test_cuda_without_a_cuda_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="none on this machine; use --device cpu"):
        choose_device("cuda")
    assert choose_device("auto").type == "cpu"


def test_a_cuda_device_beyond_the_last(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(InputError, match="2"):
        choose_device("cuda:2")


def test_exact_products_within_fast_ones_and_back():
    before = torch.get_float32_matmul_precision()
    said = []

    @exact_products()
    def inside():
        said.append(torch.get_float32_matmul_precision())

    with fast_products(torch.device("cuda")):
        assert torch.get_float32_matmul_precision() == "medium"
        inside()
        inside()
        assert torch.get_float32_matmul_precision() == "medium"
    assert said == ["highest"] * 2 and torch.get_float32_matmul_precision() == before
