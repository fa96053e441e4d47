//! Tests Kiln's expectations of S3 against the embedded server and, if configured, against a real service: set
//! `KILN_TEST_S3_ENDPOINT`, `KILN_TEST_S3_ACCESS_KEY` and `KILN_TEST_S3_SECRET_KEY`.

mod chunks;
mod conformance;
mod connections;
mod durability;
mod listing;
mod multipart;
mod others;
mod packages;
mod store;
mod target;

macro_rules! cases {
    ($runner:ident: $($module:ident::$case:ident)*) => {
        $(#[test]
        async fn $case() {
            crate::s3::target::$runner(stringify!($case), crate::s3::$module::$case).await;
        })*
    };
}

/// The behaviour that Kiln relies on, required of any service.
macro_rules! relied_on {
    ($runner:ident) => {
        cases! { $runner:
            conformance::an_object_comes_back_as_it_was_put
            conformance::a_missing_thing_has_its_own_code
            conformance::keys_are_only_names
            conformance::a_range_is_served
            conformance::conditions_on_reading
            conformance::conditions_on_writing
            conformance::a_damaged_body_is_refused
            conformance::a_checksum_may_follow_the_body
            conformance::copying
            conformance::deleting
            conformance::a_bucket_with_objects_stays
            conformance::presigned_urls
            conformance::a_wrong_key_is_refused
            listing::listing_in_pages
            listing::listing_with_a_delimiter
            multipart::parts_become_an_object
            multipart::small_parts_are_refused
            multipart::part_numbers_may_have_gaps
            multipart::parts_and_uploads_are_listed
            multipart::a_part_can_be_replaced
            packages::packages_are_shared_by_their_digest
            packages::packages_of_other_digests_are_shared_too
            store::an_image_from_upload_to_manifest
            store::a_changed_artifact_gets_no_manifest
            store::a_discarded_image_leaves_nothing
            store::downloads_are_checked
            store::a_part_that_differs_is_found
        }
    };
}

mod real {
    relied_on!(on_real);
}

mod embedded {
    relied_on!(on_embedded);
    // Amazon does these; not every other service does.
    cases! { on_embedded:
        chunks::a_body_that_breaks_off_between_its_chunks_is_refused
        chunks::a_large_body_may_be_one_chunk
        chunks::a_part_that_breaks_off_between_its_chunks_is_refused
        conformance::checksums_are_checked
        packages::nothing_else_goes_under_a_packages_name
        multipart::wrong_parts_are_refused
        multipart::parts_may_be_left_out
        multipart::completing_twice
        multipart::completing_only_when_absent
        multipart::copying_a_part
        others::checksums_come_back
        others::errors_say_what_is_wrong
        others::every_object_is_its_only_version
        others::parts_are_read_by_their_numbers
        others::what_cannot_be_kept_is_refused
        others::what_nothing_here_has_is_said_to_be_absent
    }
}
