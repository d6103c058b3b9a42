"""The jobs by their names, and which parameters each takes."""

import pytest

from api.bodies.jobs import TriggerJobBody
from ca.errors import InvalidRequest, NotFound
from metadata.model.jobs import JOBS, JobParameters, check_parameters, job_kind


def test_registry_knows_its_jobs_and_no_others() -> None:
    assert [job_kind(job.name) for job in JOBS] == list(JOBS)
    with pytest.raises(NotFound, match="compare, drain, expire, freeze, gc"):
        job_kind("unknown")


@pytest.mark.parametrize("parameters", ["[]", "nonsense", '{"depth":1}'])
def test_parameters_that_a_job_does_not_take_are_refused(parameters: str) -> None:
    check_parameters(job_kind("expire"), "{}")
    with pytest.raises(InvalidRequest):
        check_parameters(job_kind("expire"), parameters)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("gc", '{"node_id":"n1"}'), ("gc", '{"grace_s":-1}'), ("drain", '{"node_id":1}'), ("repair", '{"x":1}')],
)
def test_job_takes_its_own_parameters_only(name: str, parameters: str) -> None:
    check_parameters(job_kind("gc"), '{"grace_s":60,"yes_really":true}')
    check_parameters(job_kind("drain"), '{"node_id":"n1"}')
    with pytest.raises(InvalidRequest):
        check_parameters(job_kind(name), parameters)


def test_every_parameter_can_be_given_and_some_job_takes_it() -> None:
    fields = set(JobParameters.__struct_fields__)
    assert fields == set(TriggerJobBody.__struct_fields__), "api/bodies/jobs.py: the API takes each parameter"
    assert fields == {name for job in JOBS for name in job.takes}
