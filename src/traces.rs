//! Traces of jobs for OpenTelemetry: each job that has ended becomes one trace, whose id is the job's, with a span for the
//! queue, the attempt and each of its steps. Sends them to the collector by OTLP over HTTP.
//!
//! A trace is made of the job's record, so it is whole even if several servers carried the job out. It is a convenience: what
//! a collector does not take at once is dropped, and no job waits for it.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use kiln_records::{Code, Failure, Job, JobId, Moment, Run, ServerId, failure::chain};
use opentelemetry::{
    InstrumentationScope, KeyValue,
    trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState},
};
use opentelemetry_otlp::{Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::{
    Resource,
    trace::{SpanData, SpanEvents, SpanExporter, SpanLinks},
};
use sha2::{Digest, Sha256};
use tokio::sync::{Mutex, mpsc};

use crate::{config::TraceSettings, metrics, store::StoredRun};

/// The most traces that wait for the collector. More are dropped.
const MOST_WAITING: usize = 256;

/// How long the collector may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends traces.
#[derive(Debug)]
pub struct Traces {
    waiting: mpsc::Sender<Vec<SpanData>>,
    queue: Mutex<mpsc::Receiver<Vec<SpanData>>>,
    exporter: opentelemetry_otlp::SpanExporter,
}

impl Traces {
    /// The sender of the settings, if they name a collector.
    ///
    /// # Errors
    ///
    /// `tls_unusable`, `config_invalid`.
    pub fn new(settings: &TraceSettings, server: ServerId) -> Result<Option<Arc<Self>>, Failure> {
        let Some(endpoint) = &settings.endpoint else {
            return Ok(None);
        };
        let client = reqwest::Client::builder()
            .timeout(PATIENCE)
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| Failure::new(Code::TlsUnusable, chain(&error)))?;
        let mut exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_http_client(client)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(format!("{}/v1/traces", endpoint.trim_end_matches('/')))
            .with_timeout(PATIENCE)
            .build()
            .map_err(|error| Failure::new(Code::ConfigInvalid, format!("[traces] endpoint: {error}")))?;
        exporter.set_resource(
            &Resource::builder_empty()
                .with_attributes([
                    KeyValue::new("service.name", "kiln"),
                    KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
                    KeyValue::new("service.instance.id", server.to_string()),
                ])
                .build(),
        );
        let (waiting, queue) = mpsc::channel(MOST_WAITING);
        Ok(Some(Arc::new(Self {
            waiting,
            queue: Mutex::new(queue),
            exporter,
        })))
    }

    /// Has the trace of a job that has ended sent.
    pub fn job_ended(&self, stored: &StoredRun) {
        if self.waiting.try_send(spans(&stored.job, &stored.run)).is_err() {
            metrics::trace_sent(false);
        }
    }

    /// Sends what waits, now and from now on. Never ends.
    pub async fn run(&self) {
        let mut queue = self.queue.lock().await;
        while let Some(spans) = queue.recv().await {
            let sent = self.exporter.export(spans).await;
            metrics::trace_sent(sent.is_ok());
            if let Err(error) = sent {
                tracing::warn!("a trace was not sent: {error}");
            }
        }
    }
}

/// Makes the spans of one job.
struct Tracer {
    job: JobId,
    scope: InstrumentationScope,
    spans: Vec<SpanData>,
}

impl Tracer {
    /// Adds a span. Spans of one job have different names, so names make ids.
    fn add(
        &mut self,
        (name, parent): (String, Option<&str>),
        (start, end): (Moment, Moment),
        attributes: Vec<KeyValue>,
        failure: Option<&Failure>,
    ) {
        let trace = TraceId::from_bytes(*self.job.0.as_bytes());
        let id = self.id(&name);
        let status = failure.map_or(Status::Unset, |failure| Status::error(failure.to_string()));
        self.spans.push(SpanData {
            span_context: SpanContext::new(trace, id, TraceFlags::SAMPLED, false, TraceState::default()),
            parent_span_id: parent.map_or(SpanId::INVALID, |parent| self.id(parent)),
            parent_span_is_remote: false,
            span_kind: SpanKind::Internal,
            name: name.into(),
            start_time: time(start),
            // Clocks of two servers may differ a little.
            end_time: time(end).max(time(start)),
            attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status,
            instrumentation_scope: self.scope.clone(),
        });
    }

    fn id(&self, name: &str) -> SpanId {
        let digest = Sha256::digest(format!("{} {name}", self.job));
        let (bytes, _) = digest.split_at(8);
        SpanId::from_bytes(bytes.try_into().unwrap_or([1; 8]))
    }
}

/// The spans of a job.
fn spans(job: &Job, run: &Run) -> Vec<SpanData> {
    let mut tracer = Tracer {
        job: job.id,
        scope: InstrumentationScope::builder("kiln").build(),
        spans: Vec::new(),
    };
    let ended = run.ended.unwrap_or_else(Moment::now);
    let launched = run.launched.unwrap_or(ended);
    let failure = run.failure();
    let text = |name: &'static str, value: &str| KeyValue::new(name, value.to_owned());
    let mut attributes = vec![
        text("kiln.job.id", &job.id.to_string()),
        text("kiln.image.name", &job.image_root_archive_name),
        text("kiln.artifact.id", &job.artifact_id.to_string()),
        text("kiln.arch", job.arch.name()),
        KeyValue::new("kiln.attempts", i64::from(run.attempt)),
    ];
    if let Some(failure) = failure {
        attributes.push(text("error.type", failure.code.name()));
    }
    tracer.add(("job".to_owned(), None), (job.created, ended), attributes, failure);
    tracer.add(
        ("queue".to_owned(), Some("job")),
        (job.created, launched),
        Vec::new(),
        None,
    );
    if run.launched.is_none() {
        return tracer.spans;
    }
    let attempt = format!("attempt {}", run.attempt);
    let place = run.plan.place.as_deref().unwrap_or_default();
    let attributes = vec![text("kiln.place", place), text("kiln.how", run.plan.how.name())];
    tracer.add((attempt.clone(), Some("job")), (launched, ended), attributes, failure);
    let mut since = launched;
    for step in &run.steps {
        // Steps of a server that did not note it yet follow each other.
        let until = step.ended.unwrap_or(since.plus(Duration::from_millis(step.wall_ms)));
        let from = until.minus(Duration::from_millis(step.wall_ms));
        let cpu = i64::try_from(step.cpu_ms).unwrap_or(i64::MAX);
        let attributes = vec![KeyValue::new("kiln.cpu_ms", cpu)];
        tracer.add(
            (step.step.name().to_owned(), Some(&attempt)),
            (from, until),
            attributes,
            None,
        );
        since = until;
    }
    let is_done = |step| run.steps.iter().any(|known| known.step == step);
    if failure.is_none() {
        tracer.add(("commit".to_owned(), Some(&attempt)), (since, ended), Vec::new(), None);
    }
    if let Some(step) = run.step.filter(|step| !is_done(*step)) {
        let failure = failure.filter(|failure| failure.step == Some(step));
        tracer.add(
            (step.name().to_owned(), Some(&attempt)),
            (since, ended),
            Vec::new(),
            failure,
        );
    }
    tracer.spans
}

fn time(moment: Moment) -> SystemTime {
    let micros = u64::try_from(moment.micros()).unwrap_or(0);
    UNIX_EPOCH + Duration::from_micros(micros)
}
