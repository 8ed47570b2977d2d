"""What the README shows in Python runs as it stands."""

import pathlib
import re

from rlvr_jax import registry
from rlvr_jax.objective.presets import from_config

README = pathlib.Path(__file__).parents[1] / "README.md"


def test_the_stage_in_the_readme_can_be_named_in_a_config(monkeypatch):
    monkeypatch.setitem(registry._TABLE, "token_weight", dict(registry._TABLE["token_weight"]))
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    scope: dict = {}
    exec(compile(code, "README.md", "exec"), scope)
    assert (
        from_config({"preset": "f_grpo", "token_weight": [{"name": "unsure", "alpha": 0.2}]}) == scope["mine"]
    )
