"""What columns become, by the names of BigDL's feature transformers."""

import subprocess
import sys

import pytest

from orca.errors import InvalidArgumentError
from orca.learn import preprocessing as p


def test_each_says_which_shapes_it_wants():
    assert p.SeqToTensor().sizes is None
    assert p.ArrayToTensor([28, 28]).sizes == ((28, 28),)
    assert p.SeqToMultipleTensors([[2], [3, 1]]).sizes == ((2,), (3, 1))
    assert p.ScalarToTensor().sizes == ((1,),)
    both = p.FeatureLabelPreprocessing([2], p.ScalarToTensor())
    assert (both.sizes, both.label_sizes) == (((2,),), ((1,),))


def test_of_a_chain_the_last_shape_counts():
    steps = [p.SeqToTensor([4]), p.ArrayToTensor([2, 2]), p.TensorToSample(), p.ToTuple()]
    assert p.ChainedPreprocessing(steps).sizes == ((2, 2),)
    assert p.ChainedPreprocessing([p.ToTuple()]).sizes is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: p.SeqToTensor([2, 0]), r"size \[2, 0\] is no shape"),
        (lambda: p.SeqToTensor(["a"]), r"size \['a'\] is no shape"),
        (lambda: p.SeqToMultipleTensors([]), "has no sizes"),
        (lambda: p.ChainedPreprocessing([p.ToTuple(), 3]), "3 is no Preprocessing"),
        (lambda: p.read_sizes("feature_preprocessing", "x"), "feature_preprocessing 'x' is not in"),
    ],
)
def test_what_is_wrong_is_named(make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make()


def test_both_old_roots_have_them_without_spark_or_torch():
    code = (
        "import sys, bigdl.dllib.feature.common as a, zoo.feature.common as b;"
        "assert a is b and a.SeqToTensor([1]).sizes == ((1,),);"
        "assert 'pyspark' not in sys.modules and 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
