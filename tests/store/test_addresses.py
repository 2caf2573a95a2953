"""Paths of stores: a folder, a bucket, or refused with what is wrong."""

import pathlib

import pytest

from hybridcache_jax.store.addresses import kvstore_spec
from hybridcache_jax.store.objects import ObjectStore

S3 = "s3://bucket/a"
ENDPOINT = "https://s3.bj.bcebos.com"
PROFILE = {"type": "profile", "profile": "p"}


def spec(path, **more):
    options = {"endpoint": None, "region": None, "credentials": None}
    return kvstore_spec(path, tries=3, wait=0.5, **{**options, **more})


@pytest.mark.parametrize(
    ("path", "driver", "bucket", "prefix"),
    [
        ("s3://bucket", "s3", "bucket", ""),
        ("s3://bucket/", "s3", "bucket", ""),
        ("s3://my.bucket-1/a", "s3", "my.bucket-1", "a/"),
        ("gs://my_bucket/a/day=1/B.c-_/", "gcs", "my_bucket", "a/day=1/B.c-_/"),
    ],
)
def test_buckets(path, driver, bucket, prefix):
    found = spec(path)
    name = driver.removesuffix("s3") or "s3"
    assert (found["driver"], found["bucket"], found["path"]) == (driver, bucket, prefix)
    assert found[f"{name}_request_retries"] == {
        "max_retries": 2,
        "initial_delay": "0.500s",
        "max_delay": "8s",
    }
    ObjectStore(path)


def test_folders(tmp_path):
    for path in (tmp_path / "new", str(tmp_path), "here", "a:b", "./s3:/x", "c:/x"):
        found = spec(path)
        place = f"{pathlib.Path(path).absolute()}/"
        assert (found["driver"], found["path"]) == ("file", place)


@pytest.mark.parametrize(
    "path",
    [
        "ftp://bucket/x",
        "http://host/bucket",
        "S3://bucket/x",
        "file:///x",
        "s3:/bucket/x",
        pathlib.Path("s3://bucket/x"),
        "",
        "a\0b",
        __file__,
    ],
)
def test_what_is_neither_is_refused(path):
    with pytest.raises(ValueError, match="is no folder"):
        ObjectStore(path)


@pytest.mark.parametrize(
    "path",
    [
        "s3://",
        "gs:///x",
        "s3://bucket/a/../../other/x",
        "s3://../x",
        "gs://bucket/./x",
        "s3://bucket//x",
        "s3://bucket/x//",
        "s3://bucket/x?region=y",
        "s3://bucket/x#y",
        "s3://bucket/a%20b",
        "s3://bucket/a b",
        "s3://bucket/x\n",
        "s3://user:word@bucket/x",
        "gs://bucket/ä",
    ],
)
def test_what_urls_would_read_otherwise_is_refused(path):
    """Two dots would leave the bucket; what follows a question mark would be lost."""
    with pytest.raises(ValueError, match="is no name of a bucket or part of a prefix"):
        ObjectStore(path)


@pytest.mark.parametrize("path", ["s3://B", "s3://ab", "gs://ab", "gs://-abc"])
def test_what_cannot_be_a_bucket_is_refused(path):
    with pytest.raises(ValueError, match=r"is no store: .*bucket"):
        ObjectStore(path)


def test_an_endpoint_has_a_region():
    found = spec(S3, endpoint=f"{ENDPOINT}/", region="bj", credentials=PROFILE)
    assert (found["endpoint"], found["aws_region"]) == (ENDPOINT, "bj")
    assert found["aws_credentials"] == PROFILE
    assert spec(S3, endpoint=ENDPOINT)["aws_region"] == "us-east-1"
    assert not {"endpoint", "aws_region", "aws_credentials"} & spec(S3).keys()


@pytest.mark.parametrize(
    ("path", "options", "match"),
    [
        ("gs://bucket", {"endpoint": ENDPOINT}, "takes no endpoint; only s3://"),
        ("x", {"region": "r", "credentials": {}}, "takes no region and no credentials"),
        (S3, {"endpoint": "localhost:9000"}, "endpoint must be a URL"),
        (S3, {"endpoint": "http://h/?x"}, "endpoint must be a URL"),
        (S3, {"credentials": {"type": "x"}}, "is no store"),
        (S3, {"credentials": {"type": "profile", "key": "x"}}, "is no store: .*key"),
        (S3, {"tries": 1}, "tries must be"),
        (S3, {"wait": 0}, "wait must be"),
        (S3, {"wait": float("nan")}, "wait must be"),
        (S3, {"wait": 9}, "wait must be"),
        (S3, {"timeout": 0}, "timeout must be"),
        (S3, {"timeout": float("inf")}, "timeout must be"),
    ],
    ids=str,
)
def test_options_that_are_none_are_refused(path, options, match):
    with pytest.raises(ValueError, match=match):
        ObjectStore(path, **options)
