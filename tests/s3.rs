//! What Kiln expects of S3, held against the embedded server and, if there is one to test, against a real service:
//! set `KILN_TEST_S3_ENDPOINT`, `KILN_TEST_S3_ACCESS_KEY` and `KILN_TEST_S3_SECRET_KEY`.

#![cfg(all(feature = "server", feature = "agent"))]
#![allow(missing_docs, clippy::unwrap_used, clippy::print_stdout, reason = "this is a test")]

#[path = "s3/conformance.rs"]
mod conformance;
#[path = "s3/durability.rs"]
mod durability;
#[path = "s3/listing.rs"]
mod listing;
#[path = "s3/multipart.rs"]
mod multipart;
#[path = "s3/store.rs"]
mod store;
#[path = "s3/target.rs"]
mod target;

macro_rules! cases {
    ($($module:ident: $($case:ident)*;)*) => {
        mod embedded {
            $($(#[tokio::test]
            async fn $case() {
                crate::target::on_embedded(crate::$module::$case).await;
            })*)*
        }

        mod real {
            $($(#[tokio::test]
            async fn $case() {
                crate::target::on_real(stringify!($case), crate::$module::$case).await;
            })*)*
        }
    };
}

cases! {
    conformance:
        an_object_comes_back_as_it_was_put
        a_missing_thing_has_its_own_code
        keys_are_only_names
        a_range_is_served
        conditions_on_reading
        conditions_on_writing
        a_damaged_body_is_refused
        checksums_are_checked
        copying
        deleting
        a_bucket_with_objects_stays
        presigned_urls
        a_wrong_key_is_refused;
    listing:
        listing_in_pages
        listing_with_a_delimiter;
    multipart:
        parts_become_an_object
        wrong_parts_are_refused
        small_parts_are_refused
        part_numbers_may_have_gaps
        parts_and_uploads_are_listed
        completing_twice
        completing_only_when_absent
        copying_a_part
        a_part_can_be_replaced;
    store:
        an_image_from_upload_to_manifest
        a_changed_artifact_gets_no_manifest
        a_discarded_image_leaves_nothing
        downloads_are_checked
        a_part_that_differs_is_found;
}
