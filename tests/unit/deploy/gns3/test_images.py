"""What is planned for images, before anything is done."""

from collections.abc import Mapping

from deploy.gns3.images import plan_pull, plan_push
from deploy.gns3.records import ServerImage, is_built_in
from deploy.gns3.restore import plan_images
from deploy.gns3.stored import StoredImages
from filestore_client.base.records import Image, ManifestImage


def on_server(filename: str, md5: str) -> ServerImage:
    return ServerImage(filename=filename, image_type="qemu", image_size=10, checksum=md5)


def stored(filename: str, md5: str, virt_type: str = "qemu") -> Image:
    return Image(
        file_uuid=f"uuid of {filename}",
        bucket_id="b",
        owner_id="o",
        filename=filename,
        content_type="",
        size_bytes=10,
        blob_sha256="",
        status="available",
        expires_at="",
        created_at="",
        updated_at="",
        virt_type=virt_type,
        format="qcow2",
        vcpus=1,
        ram_mb=1,
        extra_attributes_json="",
        md5=md5,
    )


def in_store(*images: Image) -> Mapping[str, Image]:
    return {image.md5: image for image in images}


def all_own(*images: Image) -> StoredImages:
    return StoredImages(own=in_store(*images), visible=in_store(*images))


def test_push_copies_each_content_once() -> None:
    planned = plan_push(
        [on_server("a", "1"), on_server("b", "1"), on_server("c", "2")], in_store(stored("z", "2"))
    )
    assert [(each.image.filename, each.act) for each in planned] == [
        ("a", "copy"),
        ("b", "there"),
        ("c", "there"),
    ]


def test_pull_gives_what_is_missing_and_writes_over_nothing() -> None:
    planned = plan_pull(
        [stored("a", "1"), stored("b", "2"), stored("c", "3"), stored("c", "4"), stored("v", "5", "vmware")],
        [on_server("other", "1"), on_server("b", "9")],
    )
    assert [(each.image.filename, each.act) for each in planned] == [
        ("a", "there"),
        ("b", "conflict"),
        ("c", "copy"),
        ("c", "conflict"),
    ]


def test_restore_knows_what_it_lacks() -> None:
    plan = plan_images(
        [
            ManifestImage(filename="there", md5="1"),
            ManifestImage(filename="other", md5="2"),
            ManifestImage(filename="given", md5="3"),
            ManifestImage(filename="nowhere", md5="4"),
            ManifestImage(filename="by-name", md5=""),
            ManifestImage(filename="alpine:latest", md5=""),
            ManifestImage(filename="empty8G.qcow2", md5="6"),
        ],
        [on_server("there", "1"), on_server("other", "9")],
        all_own(stored("renamed", "3"), stored("by-name", "7")),
    )
    assert [(each.image.filename, each.file_uuid) for each in plan.needed] == [
        ("given", "uuid of renamed"),
        ("by-name", "uuid of by-name"),
    ]
    assert list(plan.unknown) == ["alpine:latest"]
    assert list(plan.missing) == ["nowhere (4)"]
    assert [told.split(" ")[0] for told in plan.conflicts] == ["other"]


def test_image_of_another_owner_is_given_by_its_content_and_never_by_its_name() -> None:
    theirs, mine = stored("router.bin", "7"), stored("mine", "8")
    images = StoredImages(own=in_store(mine), visible=in_store(theirs, mine))
    wanted = [ManifestImage(filename="a.bin", md5="7"), ManifestImage(filename="router.bin", md5="")]
    plan = plan_images(wanted, [], images)
    assert [each.file_uuid for each in plan.needed] == ["uuid of router.bin"]
    assert list(plan.unknown) == ["router.bin"]


def test_two_images_of_one_name_cannot_both_be_there() -> None:
    plan = plan_images(
        [ManifestImage(filename="a", md5="1"), ManifestImage(filename="a", md5="2")],
        [],
        all_own(stored("a", "1"), stored("b", "2")),
    )
    assert len(plan.conflicts) == 1


def test_what_comes_with_every_server_is_known() -> None:
    assert all(
        map(is_built_in, ("empty8G.qcow2", "empty1T.qcow2", "OVMF_VARS_4M.fd", "OVMF.fd", "config.img"))
    )
    assert not any(map(is_built_in, ("empty.qcow2", "xempty8G.qcow2", "OVMF.fd.qcow2")))
