"""Random tiny models of transformers, saved as Hugging Face directories."""

import pytest
from references import reference_model


@pytest.fixture(scope="session")
def reference(tmp_path_factory):
    """`reference(variant, tied)`: the model and its directory, made once."""
    made = {}

    def make(variant="llama", tied=True):
        if (variant, tied) not in made:
            model, folder = reference_model(variant, tied), tmp_path_factory.mktemp(f"{variant}-{tied}")
            model.save_pretrained(folder)
            made[variant, tied] = model, folder
        return made[variant, tied]

    return make
