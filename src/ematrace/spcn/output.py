"""Features as data frames, as scikit-learn's `set_output` asks for them: one for each sentence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import sklearn

if TYPE_CHECKING:
    from ematrace.spcn.model import SPCN

Model = TypeVar("Model", bound="SPCN")
CONTAINERS = ("default", "pandas", "polars")
_CONFIG = "_sklearn_output_config"  # scikit-learn's name, which `clone` copies


def set_output(model: Model, transform: str | None) -> Model:
    if transform is not None:
        if transform not in CONTAINERS:
            raise ValueError(f"SPCN.set_output: transform is {transform!r}; choose from {', '.join(CONTAINERS)}")
        setattr(model, _CONFIG, {"transform": transform})
    return model


def as_tables(model: SPCN, features: Sequence[Any]) -> list[Any]:
    """[T, d] for each sentence, in the container that was asked for."""
    container = getattr(model, _CONFIG, {}).get("transform", sklearn.get_config()["transform_output"])
    if container == "default":
        return list(features)
    names = list(model.get_feature_names_out())
    if container == "pandas":
        import pandas as pd  # type: ignore[import-untyped]

        return [pd.DataFrame(array, columns=names) for array in features]
    import polars as pl  # type: ignore[import-not-found]

    return [pl.DataFrame(array, schema=names, orient="row") for array in features]
