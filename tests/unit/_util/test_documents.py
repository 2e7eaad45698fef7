"""YAML whose aliases stand for more than may be."""

import pytest

from vllm_vitals._util.documents import MOST_VALUES, DocumentError, yaml_


def test_what_an_alias_stands_for_counts_each_time() -> None:
    row = f"- &a [{','.join(['1'] * 99)}]\n"  # 100 values, with the list itself
    fit = MOST_VALUES // 100 - 2
    assert len(yaml_(row + "- *a\n" * fit)) == fit + 1
    with pytest.raises(DocumentError, match=f"more than {MOST_VALUES} values"):
        yaml_(row + "- *a\n" * (fit + 1))
