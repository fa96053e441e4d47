//! Image sets: their list, and the page of one: its architectures, what they lack, and the channels that lead to it. Reads the
//! database; what S3 has is as the last look found it.

use axum::{
    extract::{Path, Query as QueryString, State},
    response::Html,
};
use kiln_records::{
    ImageSet, SetId,
    run::How,
    set::{
        Member, Requirement,
        promotion::{Promotion, PromotionKind},
        state::{ArchState, Judged, SetState},
    },
};
use maud::{Markup, html};

use super::{
    Dashboard,
    jobs::{List, cut_page},
    layout,
    steps::badge,
    text::{cut, duration, name, short, when},
    viewer::Viewer,
};
use crate::{
    api::problem::{Problem, Result},
    orchestrate::sets::Looked,
};

/// The changes of a channel that are shown.
const CHANGES: u32 = 10;

pub(super) async fn list(
    State(web): State<Dashboard>,
    viewer: Viewer,
    QueryString(list): QueryString<List>,
) -> Result<Html<String>> {
    let mut rows = web.api.store.page_sets(&list.query()).await?;
    let bottom = cut_page(&mut rows).map(|last| (last.position, last.record.id.to_string()));
    let mut sets = Vec::with_capacity(rows.len());
    for stored in rows {
        let judged = web.api.sets().look.judge(&stored.record).await?;
        sets.push(Looked { stored, judged });
    }
    let body = html! {
        h1 { "Image sets" }
        (list.search("/ui/sets", &html! {}))
        @if sets.is_empty() {
            p.dim { "There is no such set. " code { "kiln sets create" } " and schedules make some." }
        } @else {
            div.wide tabindex="0" { table {
                thead { tr { th { "Name" } th { "Version" } th { "State" } th { "Architectures" } th { "Made" } } }
                tbody { @for looked in &sets {
                    @let set = &looked.stored.record;
                    tr {
                        td { a href={ "/ui/sets/" (set.id) } { (name(&set.name)) } }
                        td { (cut(&set.version, 60)) }
                        td { (set_state(looked)) }
                        td { @for (member, judged) in set.members.iter().zip(&looked.judged) {
                            (member.arch.name()) " " (arch_state(member, judged)) " "
                        } }
                        td { (when(set.created)) }
                    }
                } }
            } }
        }
        (list.next("/ui/sets", bottom))
    };
    Ok(layout::page(&viewer, "Image sets", "/ui/sets", None, &body))
}

pub(super) async fn page(State(web): State<Dashboard>, viewer: Viewer, Path(id): Path<SetId>) -> Result<Html<String>> {
    let store = &web.api.store;
    let stored = store.get_set(id).await?.ok_or_else(Problem::not_found)?;
    let judged = web.api.sets().look.judge(&stored.record).await?;
    let looked = Looked { stored, judged };
    let set = &looked.stored.record;
    let mut channels = Vec::new();
    for channel in store.channels_of(id).await? {
        channels.push(store.promotions(&set.name, &channel, CHANGES).await?);
    }
    let title = format!("{}@{}", set.name, set.version);
    let body = html! {
        h1 { (name(&title)) }
        p.line {
            (set_state(&looked))
            span.dim { "made " (when(set.created)) @if let Some(by) = &set.by { " by " (cut(by, 40)) } }
            @if let Some(since) = set.complete_since { span.dim { "complete since " (when(since)) } }
        }
        section aria-labelledby="arches-title" {
            h2 #arches-title { "Architectures" }
            (arches(&looked))
            @if !set.requires.is_empty() {
                p.dim { "Each image needs " (words(set)) " before it counts as complete." }
            }
        }
        section aria-labelledby="channels-title" {
            h2 #channels-title { "Channels" }
            @if channels.is_empty() { p.dim { "No channel leads to it." } }
            @for changes in &channels { (history(changes)) }
        }
    };
    Ok(layout::page(&viewer, &title, "/ui/sets", Some(10), &body))
}

fn words(set: &ImageSet) -> String {
    let names = set.requires.iter().map(|requirement| match requirement {
        Requirement::Boot => "a boot check",
        Requirement::Signature => "a signature",
    });
    names.collect::<Vec<_>>().join(" and ")
}

fn arches(looked: &Looked) -> Markup {
    html! {
        div.wide tabindex="0" { table {
            thead { tr { th { "Architecture" } th { "State" } th { "Image" } th { "Job" } th { "Took" } th { "Manifest" } } }
            tbody { @for (member, judged) in looked.stored.record.members.iter().zip(&looked.judged) {
                tr {
                    th scope="row" {
                        (member.arch.name())
                        @if !member.required { " " span.dim { "non-voting" } }
                    }
                    td { (arch_state(member, judged)) @if let Some(why) = &judged.why { div.dim { (cut(why, 300)) } } }
                    td { @if let Some(image) = &member.image { a href={ "/ui/images/" (image.id) } { (short(image.id)) } } }
                    td { @if let Some(last) = member.last() {
                        a href={ "/ui/jobs/" (last.job_id) } { (short(last.job_id)) }
                        @if last.how == Some(How::Emulated) { " " span.dim { "emulated" } }
                    } }
                    td { @if let Some(seconds) = member.last().and_then(|last| last.seconds) {
                        (duration(std::time::Duration::from_secs(seconds)))
                    } }
                    td { @if let Some(proof) = member.image.as_ref().and_then(|image| image.proof.as_ref()) {
                        code.digest { (cut(&proof.sha256, 12)) }
                    } }
                }
            } }
        } }
    }
}

/// The latest changes of a channel, of which the first is in force.
fn history(changes: &[Promotion]) -> Markup {
    let Some(first) = changes.first() else { return html! {} };
    html! {
        h3 { (name(&first.channel)) }
        ol.chain reversed { @for change in changes {
            li aria-current=[(change.number == first.number).then_some("true")] {
                @match (&change.set_id, &change.version) {
                    (Some(set), Some(version)) => a href={ "/ui/sets/" (set) } { (cut(version, 60)) },
                    _ => span.dim { "nothing" },
                }
                " " span.dim {
                    @match change.kind {
                        PromotionKind::Promote => "promoted",
                        PromotionKind::Rollback => "returned to",
                        PromotionKind::Withdraw => "emptied",
                        PromotionKind::Change => "changed",
                    }
                    @if let Some(images) = &change.images { " (" (cut(images, 200)) ")" }
                    " " (when(change.at))
                    @if let Some(by) = &change.by { " by " (cut(by, 40)) }
                }
            }
        } }
    }
}

fn set_state(looked: &Looked) -> Markup {
    let state = looked.state();
    let class = match state {
        SetState::Complete => "good",
        SetState::Building => "busy",
        SetState::Incomplete => "bad",
        SetState::Unverified => "warn",
    };
    badge(class, state.name())
}

fn arch_state(member: &Member, judged: &Judged) -> Markup {
    let class = match judged.state {
        ArchState::Complete => "good",
        ArchState::Building | ArchState::Verifying | ArchState::Booting => "busy",
        ArchState::Missing | ArchState::Waiting => "calm",
        ArchState::Lacking | ArchState::Unverified => "warn",
        _ if !member.required => "warn",
        ArchState::Failed | ArchState::Deleted | ArchState::Changed | ArchState::Unusable => "bad",
    };
    badge(class, judged.state.name())
}
