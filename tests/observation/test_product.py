"""Product: the shipped suite over several mixes, and equality with its parts."""

import json
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy import sparse

import bnp_dask as bnp
from bnp_dask.allocation import FiniteMixture
from bnp_dask.core.batch import Batch
from bnp_dask.errors import DataError, SettingError
from bnp_dask.model import Model
from bnp_dask.observation.bernoulli import Bernoulli
from bnp_dask.observation.diag_gaussian import DiagGaussian
from bnp_dask.observation.fixed_variance_gaussian import FixedVarianceGaussian
from bnp_dask.observation.gaussian import Gaussian
from bnp_dask.observation.multinomial import Multinomial
from bnp_dask.observation.poisson import Poisson
from bnp_dask.observation.product import Product
from bnp_dask.testing import ObservationSuite, random_resp, survey_of
from tests.observation.test_bernoulli import TestBernoulli as Bits
from tests.observation.test_diag_gaussian import TestDiagGaussian as Diagonal
from tests.observation.test_multinomial import TestMultinomial as Words
from tests.observation.test_poisson import TestPoisson as Rates


class TestProduct(ObservationSuite):
    """Gaussian columns on both sides of bits and counts; one of the groups is not consecutive."""

    groups = (((0, 6), DiagGaussian()), (range(1, 5), Bernoulli()), ("5,7:9", Poisson()))
    n_draws = 600

    def model(self):
        return Product(self.groups)

    def batch(self, rng, n_atoms):
        x = np.empty((n_atoms, 9))
        x[:, [0, 6]] = Diagonal().batch(rng, n_atoms).x
        x[:, 1:5] = Bits().batch(rng, n_atoms).x
        x[:, [5, 7, 8]] = Rates().batch(rng, n_atoms).x
        return Batch(x)

    def draw(self, params, k, rng):
        suites = (Diagonal(), Bits(), Rates())
        return [suite.draw(part, k, rng) for suite, part in zip(suites, params.parts, strict=True)]

    def log_density(self, phi, x):
        parts = ((Diagonal(), [0, 6]), (Bits(), [1, 2, 3, 4]), (Rates(), [5, 7, 8]))
        return sum(suite.log_density(own, x[:, c]) for (suite, c), own in zip(parts, phi, strict=True))


class TestSparseProduct(ObservationSuite):
    """Words of a document and bits of its author, as one sparse matrix."""

    n_draws = 600

    def model(self):
        return Product({"4:": Multinomial(lam=0.5), ":4": Bernoulli()})

    def batch(self, rng, n_atoms):
        bits, words = Bits().batch(rng, n_atoms), Words().batch(rng, n_atoms)
        return Batch(sparse.csr_array(sparse.hstack([bits.x, words.x], format="csr")))

    def draw(self, params, k, rng):
        return Words().draw(params.parts[0], k, rng), Bits().draw(params.parts[1], k, rng)

    def log_density(self, phi, x):
        return Words().log_density(phi[0], x[:, 4:]) + Bits().log_density(phi[1], x[:, :4].toarray())


class TestNestedProduct(TestProduct):
    def model(self):
        inner = Product({"0:4": Bernoulli(), "4:7": Poisson()})
        return Product({"0,6": DiagGaussian(), "1:6,7:9": inner})

    def draw(self, params, k, rng):
        bits, rates = params.parts[1].parts
        return Diagonal().draw(params.parts[0], k, rng), Bits().draw(bits, k, rng), Rates().draw(rates, k, rng)


def test_is_the_sum_of_its_parts():
    suite = TestProduct()
    model, batch, resp, summary, params = suite.fitted()
    expected = np.zeros((batch.n_atoms, 3))
    predictive, kl = expected.copy(), np.zeros(3)
    base = 0.0
    for (columns, part), own in zip(suite.groups, model.parts, strict=True):
        index = {"5,7:9": [5, 7, 8]}.get(columns, columns) if isinstance(columns, str) else list(columns)
        view = batch.columns(np.array(index))
        alone = part.with_prior(survey_of(view))
        assert type(alone) is type(own)
        fields = suite.summary(alone, view, resp)
        phi = alone.global_step(fields)
        expected += alone.expected_log_lik(phi, view)
        predictive += alone.log_predictive(phi, view)
        kl += alone.kl(phi)
        base += suite.log_base(alone, view) @ resp.sum(axis=1)
    assert_allclose(model.expected_log_lik(params, batch), expected)
    assert_allclose(model.log_predictive(params, batch), predictive)
    assert_allclose(model.kl(params), kl)
    assert_allclose(summary["log_base"], base)
    assert list(model.fields) == ["0.x", "0.xx", "1.x", "2.x", "log_base"]
    assert model.sizes == {"0.feature": 2, "1.feature": 4, "2.feature": 3}


def test_base_measures_of_several_parts_add_up():
    rates, rng = Rates(), np.random.default_rng(3)
    views = [rates.batch(rng, 60).x for _ in range(2)]
    width = views[0].shape[1]
    model = Product({f"0:{width}": Poisson(), f"{width}:{2 * width}": Poisson()})
    batch, resp = Batch(np.concatenate(views, axis=1)), rng.dirichlet(np.ones(3), 60)
    summary = rates.summary(model.with_prior(survey_of(batch)), batch, resp)
    alone = [Poisson().with_prior(survey_of(Batch(x))) for x in views]
    expected = sum(rates.log_base(part, Batch(x)).sum() for part, x in zip(alone, views, strict=True))
    assert_allclose(summary["log_base"], expected)


def test_no_base_measure_no_field():
    model = Product({(0,): DiagGaussian(), (1,): Bernoulli()})
    assert "log_base" not in model.fields


def test_columns_in_every_notation_are_the_same():
    x = np.random.default_rng(0).normal(size=(20, 6))
    notations = ["0:3", range(3), (0, 1, 2), slice(3), slice(0, 3), ":3", "0, 1:3", np.arange(3), [0, 1, 2]]
    for columns in notations:
        model = Product([(columns, DiagGaussian()), (slice(3, None), FixedVarianceGaussian())])
        model = model.with_prior(survey_of(Batch(x)))
        assert [text for text, _ in model.groups] == ["0:3", "3:6"]
        assert json.loads(json.dumps(model.groups[0][0])) == "0:3"
    assert Product({5: Bernoulli()}).groups[0][0] == "5"
    strided = Product({"::2": DiagGaussian(), "1::2": DiagGaussian()}).with_prior(survey_of(Batch(x)))
    assert [text for text, _ in strided.groups] == ["0,2,4", "1,3,5"]


def test_order_of_columns_within_a_group_is_kept():
    x = np.random.default_rng(0).normal(size=(20, 3))
    model = Product({(2, 0): DiagGaussian(), 1: DiagGaussian()}).with_prior(survey_of(Batch(x)))
    assert_allclose(model.parts[0].m, x[:, [2, 0]].mean(axis=0))
    values = model.summarize(Batch(x), np.ones((20, 1)))
    assert_allclose(values["0.x"][0] + 20 * model.parts[0].center, x[:, [2, 0]].sum(axis=0))


def test_refuses_groups_that_do_not_cover_the_columns_once():
    survey = survey_of(Batch(np.random.default_rng(0).normal(size=(20, 6))))
    for groups, message in (
        ({"0:4": DiagGaussian(), "3:6": DiagGaussian()}, r"columns \[3\] are named twice"),
        ({"0:4": DiagGaussian(), "5": DiagGaussian()}, r"1 of 6 columns belong to no group.*\[4\]"),
        ({"0:7": DiagGaussian()}, "have 6 columns"),
        ({(0, 9): DiagGaussian()}, "have 6 columns"),
        ({"age": DiagGaussian()}, '"age".*data have no names.*notation of slices'),
        ({"": DiagGaussian()}, "notation of slices"),
        ({"3:3": DiagGaussian()}, "name none"),
        ({(0, 0, 1, 2, 3, 4, 5): DiagGaussian()}, r"\[0\] are named twice"),
    ):
        with pytest.raises(SettingError, match=message):
            Product(groups).with_prior(survey)
    for groups in ({}, {(): DiagGaussian()}, {(-1,): DiagGaussian()}, {(0.5,): DiagGaussian()}, {None: DiagGaussian()}):
        with pytest.raises(SettingError):
            Product(groups)


def test_check_names_the_group():
    suite = TestProduct()
    model, batch, _ = suite.ready()
    x = batch.x.copy()
    x[7, 3] = 2.0
    with pytest.raises(DataError, match=r"part-1, columns 1:5 .*row 7, column 2 is 2.0; Bernoulli"):
        model.check(replace(batch, x=x, name="part-1"))
    suite.model().check(batch)
    with pytest.raises(DataError, match=r"row 7, column 2 is 2.0; Bernoulli"):
        suite.model().check(replace(batch, x=x))


def test_global_step_uses_each_parts_own_statistics():
    suite = TestProduct()
    model, batch, _ = suite.ready()
    resp = random_resp(np.random.default_rng(2), batch.n_atoms, 2)
    params = model.global_step(suite.summary(model, batch, resp))
    assert_array_equal(params.parts[1].lam1, 0.5 + resp.T @ batch.x[:, 1:5])
    assert_allclose(params.parts[2].a, 1.0 + resp.T @ batch.x[:, [5, 7, 8]])


# -- names ------------------------------------------------------------------------------------------------------
NAMES = ("age", "visits", "smokes", "height, cm", "3")


def named_batch(n_atoms=30):
    rng = np.random.default_rng(0)
    x = np.column_stack([rng.normal(size=n_atoms), rng.poisson(3.0, n_atoms), rng.random(n_atoms) < 0.5])
    return Batch(np.column_stack([x, rng.normal(size=(n_atoms, 2))]).astype(float), names=NAMES)


@pytest.mark.parametrize(
    "groups",
    [
        {("age", "height, cm", "3"): DiagGaussian(), "visits": Poisson(), "smokes": Bernoulli()},
        {(0, 3, 4): DiagGaussian(), "visits": Poisson(), ("smokes",): Bernoulli()},
        [(["age", "height, cm", "3"], DiagGaussian()), ("1", Poisson()), (2, Bernoulli())],
        {"0,3:": DiagGaussian(), "visits , smokes": Product({"visits": Poisson(), "1": Bernoulli()})},
    ],
)
def test_names_and_positions_are_the_same(groups):
    batch = named_batch()
    named = Product(groups).with_columns(NAMES)
    model = named.with_prior(survey_of(batch))
    places = Product({"0,3:": DiagGaussian(), "1": Poisson(), "2": Bernoulli()}).with_prior(survey_of(batch))
    resp = random_resp(np.random.default_rng(1), batch.n_atoms, 2)
    suite = TestProduct()
    params, other = (m.global_step(suite.summary(m, batch, resp)) for m in (model, places))
    assert_allclose(model.expected_log_lik(params, batch), places.expected_log_lik(other, batch), rtol=1e-14)
    model.check(batch)


def test_names_are_kept_and_looked_up_again():
    groups = {("age", "height, cm", "3"): DiagGaussian(), "visits": Poisson(), "smokes": Bernoulli()}
    model = Product(groups).with_prior(replace(survey_of(named_batch()), names=NAMES))
    assert [key for key, _ in model.groups] == [("age", "height, cm", "3"), "visits", "smokes"]
    assert model.places == ("0,3:5", "1", "2")
    turned = named_batch().columns(np.array([4, 3, 2, 1, 0]))
    again = model.with_columns(turned.names).with_prior(replace(survey_of(turned), names=turned.names))
    assert again.places == ("4,1,0", "3", "2")
    assert_array_equal(again.parts[0].m, model.parts[0].m)
    assert Product({"0:2": DiagGaussian()}).with_columns(("a", "b")).places == ("0:2",)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"ages": Poisson()}, "no column 'ages'; nearest existing name: 'age'"),
        ({("age", "visit"): Poisson()}, "no column 'visit'; nearest existing name: 'visits'"),
        ({"age, visit": Poisson()}, "no column 'visit'"),
        ({"age, 1": Poisson()}, "no column '1'.*positions and names are not mixed"),
        ({"3": Poisson()}, r"'3' may be a position, or the column of that name, which is at position 4.*\"3:4\" or"),
        ({"0,3": Poisson()}, "'3' may be a position"),
        ({"age": Poisson(), 0: Poisson()}, r"columns \['age'\] are named twice"),
        ({"age": Poisson()}, r"4 of 5 columns belong to no group.*'visits', 'smokes'"),
    ],
)
def test_names_that_say_nothing_are_refused(groups, message):
    survey = replace(survey_of(named_batch()), names=NAMES)
    with pytest.raises(SettingError, match=message):
        Product(groups).with_columns(NAMES).with_prior(survey)


def test_a_name_with_a_comma_may_also_be_two_names():
    with pytest.raises(SettingError, match=r"may be the column of that name, or several"):
        Product({"a,b": Poisson(), "c": Poisson()}).with_columns(("a", "b", "a,b", "c"))
    for groups in ({("a", 1): Poisson()}, {("a", None): Poisson()}):
        with pytest.raises(SettingError, match="not both in one group"):
            Product(groups)


def test_checks_speak_of_names():
    batch = named_batch()
    x = batch.x.copy()
    x[7, 2] = 2.0
    model = Product({"visits": Poisson(), "smokes": Bernoulli(), ("age", "height, cm", "3"): DiagGaussian()})
    for ready in (model, model.with_columns(NAMES), model.with_columns(NAMES).with_prior(survey_of(batch))):
        with pytest.raises(DataError, match="batch: row 7, column 'smokes' is 2.0; Bernoulli"):
            ready.check(replace(batch, x=x))


def test_the_columns_whose_correlations_a_product_learns_are_those_of_its_parts_in_the_data():
    product = Product({"0,2": Poisson(), "5,3": Gaussian(), "1,4": Gaussian()})
    assert product.correlated(6, None).tolist() == [1, 3, 4, 5]
    assert Product({"0,2": Gaussian(), "1": Poisson()}).correlated(3, None).tolist() == [0, 2]


def test_rows_are_drawn_into_the_columns_of_each_part():
    rng = np.random.default_rng(0)
    x = np.column_stack(
        [rng.normal(100.0, 1.0, 60), rng.poisson(5.0, 60), rng.normal(-300.0, 1.0, 60), np.arange(60) % 2]
    )
    product = Product({"0,2": DiagGaussian(), "1": Poisson(), "3": Bernoulli()}).with_prior(survey_of(Batch(x)))
    params = product.global_step(Model(FiniteMixture(), product).summarize(np.arange(1), Batch(x), np.ones((60, 1))))
    drawn = product.draw(params, np.zeros(200, np.int64), rng)
    assert_allclose(drawn[:, :3].mean(axis=0), x[:, :3].mean(axis=0), atol=1.0)
    assert set(np.unique(drawn[:, 3])) == {0.0, 1.0} and (drawn[:, 1] == np.floor(drawn[:, 1])).all()


def test_parts_learn_their_priors_as_they_do_alone():
    # features of unlike spread within clusters, where a learned prior differs much from the one that the data give
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 4, 160)
    x = rng.normal(rng.normal(size=(4, 6))[kind] * 4.0, 1.0) @ rng.normal(size=(6, 6))
    alone = bnp.DirichletProcessMixture("gaussian", random_state=0).fit(x)
    for groups in ({"0:6": bnp.Gaussian()}, {(0, 1, 2, 3, 4, 5): bnp.Gaussian()}):
        found = bnp.DirichletProcessMixture(bnp.Product(groups), random_state=0).fit(x)
        assert_allclose(found.lower_bounds_[-1], alone.lower_bounds_[-1], rtol=1e-9)
        assert_array_equal(found.labels_, alone.labels_)
