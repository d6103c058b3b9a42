"""What a process tells about the requests that it answered."""

from prometheus_client.parser import text_string_to_metric_families

from runtime.metrics import Metrics

DURATIONS_S = (0.0005, 0.001, 0.0011, 700.0)  # a bucket holds its bound


def test_requests_are_counted_by_status_and_their_times_in_buckets_that_add_up() -> None:
    metrics = Metrics("node")
    for duration_s, status in zip(DURATIONS_S, (200, 200, 206, 200), strict=True):
        metrics.observe_request(
            method="GET", route="/files/{file_uuid}", status=status, duration_s=duration_s
        )
    metrics.observe_request(method="BREW", route="(none)", status=405, duration_s=0.5)

    text = metrics.exposition("")[0].decode()
    found = {
        (sample.name.removeprefix("filestore_http_"), *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("filestore_http_request")
    }
    route = "/files/{file_uuid}"
    assert found["requests_total", "GET", route, "200"] == 3
    assert found["requests_total", "GET", route, "206"] == 1
    assert found["requests_total", "OTHER", "(none)", "405"] == 1
    assert found["request_duration_seconds_sum", "GET", route] == sum(DURATIONS_S)
    assert found["request_duration_seconds_count", "GET", route] == len(DURATIONS_S)
    buckets = {key[1]: count for key, count in found.items() if key[0].endswith("bucket") and route in key}
    assert [buckets[bound] for bound in ("0.001", "0.003", "600.0", "+Inf")] == [2, 3, 3, 4]
