//! The dashboard: pages for people, below `/ui`. It reads records through the store, asks the orchestrator what it sees,
//! and changes things only by sending requests to the [API](crate::api) in the name of the user.
//!
//! Each page is whole without a script. The script only fetches the same page again and puts its parts in place, and pages
//! through a log. Whatever a page shows of records goes through `text`, and templates escape all of it.

mod act;
mod assets;
mod differences;
mod failures;
mod forms;
mod gate;
mod history;
mod images;
mod issuer;
mod job;
mod jobs;
mod layout;
mod log;
mod matrix;
mod origin;
mod overview;
mod places;
mod plot;
mod recipe_upload;
mod recipes;
mod schedules;
mod sessions;
mod sets;
mod steps;
mod text;
mod usage;
mod viewer;

use std::sync::Arc;

use axum::{
    Router,
    extract::DefaultBodyLimit,
    middleware,
    routing::{get, post},
};
use kiln_records::Clock;

use self::{failures::Failures, history::Histories, sessions::Sessions};
use crate::api::{Api, auth::sign_in::SignIn};

/// The pages, and what they need. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dashboard(Arc<Shared>);

/// What all pages share.
#[derive(Debug)]
pub struct Shared {
    api: Api,
    /// The API's routes, for requests in the name of a user.
    routes: Router,
    sessions: Sessions,
    /// Where people sign in at the issuer.
    sign_in: Option<SignIn>,
    failures: Failures,
    histories: Histories,
}

impl std::ops::Deref for Dashboard {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl Dashboard {
    /// The pages of this API. `secure` says that browsers reach the server over TLS; `sign_in` is the way to the issuer.
    pub fn new(api: Api, secure: bool, sign_in: Option<SignIn>, clock: Clock) -> Self {
        Self(Arc::new(Shared {
            routes: api.clone().router(),
            api,
            sessions: Sessions::new(secure, clock),
            sign_in,
            failures: Failures::default(),
            histories: Histories::default(),
        }))
    }

    /// The routes of the pages, to be joined with those of the API.
    pub fn router(&self) -> Router {
        Router::new()
            .route("/ui", get(overview::page))
            .route("/ui/login", get(forms::login).post(forms::logged_in))
            .route("/ui/login/issuer", get(issuer::begin))
            .route("/ui/login/callback", get(issuer::finish))
            .route("/ui/logout", post(forms::logged_out))
            .route("/ui/style.css", get(assets::style))
            .route("/ui/script.js", get(assets::script))
            .route("/ui/icon.svg", get(assets::icon))
            .route("/ui/jobs", get(jobs::page))
            .route("/ui/jobs/{id}", get(job::page))
            .route("/ui/jobs/{id}/lines", get(log::lines))
            .route("/ui/jobs/{id}/find", get(log::find))
            .route("/ui/jobs/{id}/events", get(log::events))
            .route("/ui/jobs/{id}/log.txt", get(log::whole))
            .route("/ui/jobs/{id}/cancel", post(act::cancel))
            .route("/ui/jobs/{id}/retry", post(act::retry))
            .route("/ui/recipes", get(recipes::list))
            .route(
                recipe_upload::ADDRESS,
                post(recipe_upload::upload).layer(DefaultBodyLimit::disable()),
            )
            .route("/ui/recipes/{id}/values", post(recipe_upload::values))
            .route("/ui/recipes/{id}", get(recipes::page))
            .route("/ui/recipes/{id}/build", post(act::build))
            .route("/ui/images", get(images::list))
            .route("/ui/images/{id}", get(images::page))
            .route("/ui/images/{id}/since/{old}", get(differences::page))
            .route("/ui/sets", get(sets::list))
            .route("/ui/sets/{id}", get(sets::page))
            .route("/ui/schedules", get(schedules::list).post(act::new_schedule))
            .route("/ui/schedules/preview", get(schedules::preview))
            .route("/ui/schedules/{id}", get(schedules::page))
            .route("/ui/schedules/{id}/{what}", post(act::schedule))
            .layer(middleware::map_response(async |response| gate::harden(response)))
            .with_state(self.clone())
    }

    /// Puts the gate of the pages before a whole server: it knows sessions, and answers people with pages.
    pub fn before(&self, app: Router) -> Router {
        app.layer(middleware::from_fn_with_state(self.clone(), gate::gate))
    }
}
