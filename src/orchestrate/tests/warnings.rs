//! What agents warn of, in the records of jobs.

use kiln_records::{
    Code, Step, Warning, Warnings,
    protocol::{Call, Event, EventBatch, What},
};

use super::{AgentCalls, Site};
use crate::config::WatchSettings;

fn batch(first: u64, events: impl IntoIterator<Item = What>) -> Call {
    let event = |what| Event {
        time: jiff::Timestamp::now(),
        what,
    };
    Call::PostEvents(EventBatch {
        first,
        events: events.into_iter().map(event).collect(),
    })
}

#[tokio::test]
async fn an_agent_decides_neither_how_many_warnings_a_record_has_nor_how_long_they_are() {
    let site = Site::new().await;
    let server = site.server(WatchSettings::default());
    let job = site.launched(&server).await;
    let token = server.place.facts(job).token;
    let tell = async |first, events: Vec<What>| {
        let told = server.orchestrator.desk.answer(job, &token, batch(first, events)).await;
        told.unwrap();
    };
    let warnings = async || site.store.get_run(job).await.unwrap().unwrap().run.warnings;

    let forged = Warning {
        step: Some(Step::Upload),
        ..Warning::new(Code::RecipePaths, "one").hint("a hint")
    };
    tell(0, vec![What::StepStarted(Step::Build), What::Warning(forged.clone())]).await;
    let one = Warning {
        step: Some(Step::Build),
        ..forged.clone()
    };
    assert_eq!(warnings().await.list, std::slice::from_ref(&one));
    // The answer was lost.
    tell(0, vec![What::StepStarted(Step::Build), What::Warning(forged)]).await;
    assert_eq!(warnings().await.list, [one]);

    let mut first = 2;
    for number in 0..5 {
        let flood = |at| {
            What::Warning(Warning::new(
                Code::RootModes,
                format!("{number} {at} {}", "x".repeat(20_000)),
            ))
        };
        let events: Vec<_> = (0..200).map(flood).collect();
        tell(first, events).await;
        first += 200;
    }
    let kept = warnings().await;
    assert_eq!(kept.count(), 1001);
    let bytes: usize = kept.list.iter().map(|warning| warning.message.len()).sum();
    assert!(bytes <= Warnings::MOST_BYTES, "{bytes}");
}
