"""The catalogue of planted mistakes is up to date, and some of it is run."""

import pytest
from mutation_catalogue import MACHINE, MUTATIONS
from mutation_run import REPOSITORY, mutated, try_in_machine, try_one


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_it_still_applies(mutation):
    source = (REPOSITORY / mutation.package / mutation.file).read_text("utf-8")
    changed = mutated(mutation, source)
    assert changed != source
    compile(changed, mutation.file, "exec")
    for test in mutation.tests:
        file, _, name = test.partition("::")
        text = (REPOSITORY / file).read_text("utf-8")
        assert f"def {name.partition('[')[0]}" in text


def test_there_are_many_and_their_names_differ():
    assert len(MUTATIONS) >= 50
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS)
    assert len({mutation.file for mutation in MUTATIONS}) >= 12


def test_many_are_found_by_the_machine_alone():
    assert len(MACHINE) >= 25
    assert set(MACHINE) <= {mutation.name for mutation in MUTATIONS}


def test_a_text_that_is_gone_is_named():
    with pytest.raises(ValueError, match="stands 0 times in lifecycle"):
        mutated(MUTATIONS[0], "")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["version-not-compared", "halo-forgotten"])
def test_it_is_caught(name):
    (mutation,) = (mutation for mutation in MUTATIONS if mutation.name == name)
    outcome = try_one(mutation)
    assert outcome.verdict == "caught", outcome.detail


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pin-missing", "halo-forgotten"])
def test_the_machine_finds_it(name):
    (mutation,) = (mutation for mutation in MUTATIONS if mutation.name == name)
    outcome = try_in_machine(mutation, MACHINE[name])
    assert outcome.verdict == "caught", outcome.detail
    assert "DivergenceError" in outcome.detail
