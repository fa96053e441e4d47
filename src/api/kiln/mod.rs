//! `/kiln/v1`: the API beyond IMS's. One file per resource.

mod audit;
mod boot_checks;
mod catalogue;
mod channels;
mod customize;
mod downloads;
mod exports;
mod follow;
mod found_packages;
mod jobs;
mod logs;
mod overview;
mod package_versions;
pub(crate) mod packages;
mod programs;
mod prune;
mod schedule_fields;
mod schedule_requests;
mod schedules;
mod set_requests;
mod sets;
mod usage;
mod webhooks;

use utoipa_axum::{router::OpenApiRouter, routes};

use super::Api;

/// All routes of `/kiln/v1` except uploads.
pub(super) fn router() -> OpenApiRouter<Api> {
    OpenApiRouter::new()
        .routes(routes!(logs::get))
        .routes(routes!(follow::get))
        .routes(routes!(jobs::get))
        .routes(routes!(overview::get))
        .routes(routes!(programs::get))
        .routes(routes!(usage::get))
        .routes(routes!(jobs::cancel))
        .routes(routes!(jobs::retry))
        .routes(routes!(jobs::complete))
        .routes(routes!(jobs::fail))
        .routes(routes!(customize::create))
        .routes(routes!(audit::list))
        .routes(routes!(prune::look, prune::prune))
        .routes(routes!(downloads::list))
        .routes(routes!(packages::list))
        .routes(routes!(found_packages::find))
        .routes(routes!(boot_checks::get, boot_checks::put))
        .routes(routes!(schedules::list, schedules::create))
        .routes(routes!(schedules::get, schedules::update, schedules::delete))
        .routes(routes!(schedules::pause))
        .routes(routes!(schedules::resume))
        .routes(routes!(schedules::run))
        .routes(routes!(schedules::history))
        .routes(routes!(sets::list, sets::create))
        .routes(routes!(sets::get, sets::delete))
        .routes(routes!(sets::add_arch))
        .routes(routes!(sets::rebuild))
        .routes(routes!(webhooks::list))
        .routes(routes!(webhooks::deliveries))
        .routes(routes!(webhooks::retry))
        .routes(routes!(webhooks::test))
        .routes(routes!(catalogue::list))
        .routes(routes!(catalogue::resolve))
        .routes(routes!(catalogue::resolve_arch))
        .routes(routes!(catalogue::file))
        .routes(routes!(channels::list))
        .routes(routes!(channels::withdraw))
        .routes(routes!(channels::history))
        .routes(routes!(channels::promote))
        .routes(routes!(channels::rollback))
        .routes(routes!(exports::os_images))
        .routes(routes!(exports::release_images))
        .routes(routes!(exports::openstack))
}
