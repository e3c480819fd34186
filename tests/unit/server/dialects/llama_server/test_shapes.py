"""What `/props` says of a draft model and of a head."""

from __future__ import annotations

from specllama.client.model_info import ModelInfo
from specllama.server.dialects.llama_server.routes import props_of
from tests.support.loads import TARGET, load_info

DRAFT = ModelInfo("models/small.gguf", "small", 10**8, "Q8_0", 0)


def test_a_head_is_named_by_its_kind() -> None:
    inside = props_of(load_info(draft=TARGET, head="MTP, 1 layer"), ["big"], {}, [])
    assert inside["speculation"]["head"] == "MTP, 1 layer"
    assert inside["draft_model_path"] == inside["model_path"]
    model = props_of(load_info(draft=DRAFT), ["big"], {}, [])
    assert (model["speculation"]["head"], model["speculation"]["head_in_target"]) == ("", False)
    both = props_of(load_info(draft=DRAFT, head="MTP, 1 layer", head_in_target=True), ["big"], {}, [])
    assert (both["speculation"]["head"], both["speculation"]["head_in_target"]) == ("MTP, 1 layer", True)
    assert both["draft_model_path"] == model["draft_model_path"] != both["model_path"]
    assert model["speculation"]["draft"] == {"name": "small", "quant": "Q8_0", "n_params": 10**8}
