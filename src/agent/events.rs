//! Sends events to the server: in order, without gaps, in batches, and with a sign of life when nothing happens. Lines
//! beyond the log's budget are dropped. Uses the channel only.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kiln_records::{
    Code, Failure, Warning, log,
    protocol::{Event, EventBatch, Stream, What},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout_at},
};

use super::{
    channel::{Channel, Ending},
    log_budget::{LogBudget, QUIET, now},
    mask::Mask,
};

/// The most events that may wait to be sent; a tool with more output is slowed down.
const WAITING: usize = 2_000;

/// The most events in one batch.
const BATCH: usize = 200;

/// The size in bytes at which a batch takes no more text.
const BATCH_TEXT: usize = 1024 * 1024;

/// How long a batch may grow after the previous one was sent.
const GROW: Duration = Duration::from_millis(250);

/// After this time without an event, the server gets a sign of life.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// The size that the log may have until the server has said it, in bytes.
const FIRST_BUDGET: u64 = 1 << 20;

enum Message {
    Event(Event),
    Flush(oneshot::Sender<()>),
}

/// Takes events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Events {
    messages: mpsc::Sender<Message>,
    budget: Budget,
    mask: Arc<Mutex<Mask>>,
}

/// The log's budget, shared by those who write and the task that sends.
#[derive(Debug, Clone)]
struct Budget(Arc<Mutex<LogBudget>>);

impl Budget {
    fn lock(&self) -> MutexGuard<'_, LogBudget> {
        // A panic while the lock is held leaves nothing half-done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be sent when this happens: nothing, if it is a line too many.
    fn admit(&self, what: What) -> Vec<Event> {
        let event = now(what);
        match &event.what {
            What::Log { .. } => self.lock().take(event, std::time::Instant::now()),
            // What was written before a step ended is to be read before it.
            What::StepStarted(_) | What::StepFinished { .. } | What::Shell(_) => {
                let mut events = self.lock().end_gap();
                events.push(event);
                events
            }
            What::Progress { .. } | What::Sandbox(_) | What::Execs(_) | What::Warning(_) => vec![event],
        }
    }
}

impl Events {
    /// Starts to send over `channel`, in a task that ends with the last clone of these events, or when the server
    /// accepts no more; in the latter case it stops the agent through the channel.
    pub fn new(channel: Channel) -> Self {
        Self::with_heartbeat(channel, HEARTBEAT)
    }

    /// The same; the server gets a sign of life after this time without an event.
    pub fn with_heartbeat(channel: Channel, heartbeat: Duration) -> Self {
        let (messages, queue) = mpsc::channel(WAITING);
        let budget = LogBudget::new(FIRST_BUDGET, std::time::Instant::now());
        let budget = Budget(Arc::new(Mutex::new(budget)));
        let sender = Sender {
            channel,
            queue,
            budget: budget.clone(),
            received: Vec::with_capacity(BATCH),
            next: 0,
            last_sent: None,
            heartbeat,
        };
        tokio::spawn(sender.run());
        let mask = Arc::default();
        Self { messages, budget, mask }
    }

    /// Sets the size that the log may have from here on, in bytes.
    pub fn allow(&self, bytes: u64) {
        *self.budget.lock() = LogBudget::new(bytes, std::time::Instant::now());
    }

    /// Masks these secrets in all that is said from here on.
    pub fn conceal(&self, secrets: impl IntoIterator<Item = String>) {
        self.mask().learn(secrets);
    }

    /// A failure without secrets.
    pub fn masked(&self, failure: Failure) -> Failure {
        self.mask().apply_to(failure)
    }

    fn mask(&self) -> MutexGuard<'_, Mask> {
        self.mask.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What is to be sent when this happens.
    fn admit(&self, what: What) -> Vec<Event> {
        let what = match what {
            // Cut last: half a secret is no longer found.
            What::Log { stream, text } => What::Log {
                stream,
                text: log::cut(self.mask().apply(text)),
            },
            What::Warning(warning) => What::Warning(self.mask().apply_to_warning(warning)),
            other => other,
        };
        self.budget.admit(what)
    }

    /// Reports an event.
    pub async fn send(&self, what: What) {
        for event in self.admit(what) {
            // The loss of the server is noticed by the next call, not here.
            let _ = self.messages.send(Message::Event(event)).await;
        }
    }

    /// Logs a line of the agent itself.
    pub async fn say(&self, text: impl Into<String>) {
        self.send(line(Stream::Agent, text.into())).await;
    }

    /// Warns in the log, and in the job's record.
    pub async fn warn(&self, warning: Warning) {
        self.say(warning.line()).await;
        self.send(What::Warning(warning)).await;
    }

    /// The same for blocking code.
    pub fn warn_blocking(&self, warning: Warning) {
        self.say_blocking(&warning.line());
        self.send_blocking(What::Warning(warning));
    }

    /// Logs a line of the agent itself, from blocking code.
    pub fn say_blocking(&self, text: &str) {
        self.send_blocking(line(Stream::Agent, text.to_owned()));
    }

    fn send_blocking(&self, what: What) {
        for event in self.admit(what) {
            let _ = self.messages.blocking_send(Message::Event(event));
        }
    }

    /// The same for code that may neither block nor wait. The line may be late when the queue is full.
    pub fn say_soon(&self, text: &str) {
        for event in self.admit(line(Stream::Agent, text.to_owned())) {
            if let Err(mpsc::error::TrySendError::Full(message)) = self.messages.try_send(Message::Event(event)) {
                let messages = self.messages.clone();
                tokio::spawn(async move { messages.send(message).await });
            }
        }
    }

    /// Reports a step's progress, for code that may not wait: dropped when the queue is full.
    pub fn progress_soon(&self, done: u64, total: u64) {
        let _ = self
            .messages
            .try_send(Message::Event(now(What::Progress { done, total })));
    }

    /// Returns when the server has stored all earlier events, or never will.
    pub async fn flush(&self) {
        let (caller, flushed) = oneshot::channel();
        let rest = self.budget.lock().end_gap();
        for event in rest {
            let _ = self.messages.send(Message::Event(event)).await;
        }
        if self.messages.send(Message::Flush(caller)).await.is_ok() {
            let _ = flushed.await;
        }
    }
}

/// A log event. Its text is masked, and cut to a readable length, before it is sent.
pub(super) fn line(stream: Stream, text: String) -> What {
    What::Log { stream, text }
}

/// The task behind [`Events`].
struct Sender {
    channel: Channel,
    queue: mpsc::Receiver<Message>,
    budget: Budget,
    /// Events that were taken off the queue and not sent yet.
    received: Vec<Message>,
    /// Number of the next event.
    next: u64,
    last_sent: Option<Instant>,
    heartbeat: Duration,
}

impl Sender {
    async fn run(mut self) {
        while self.gather().await {
            if let Err(failure) = self.send().await {
                self.channel.end(Ending::Failed(failure));
                return;
            }
        }
    }

    /// Waits for something to send, which may be just a sign of life. Returns false when all senders are gone.
    async fn gather(&mut self) -> bool {
        let silent = self.last_sent.unwrap_or_else(Instant::now) + self.heartbeat;
        while self.received.is_empty() {
            let look = silent.min(Instant::now() + QUIET);
            tokio::select! {
                count = self.queue.recv_many(&mut self.received, BATCH) => if count == 0 { return false },
                () = sleep_until(look) => {
                    let rest = self.budget.lock().end_quiet_gap(std::time::Instant::now());
                    self.received.extend(rest.into_iter().map(Message::Event));
                    if Instant::now() >= silent {
                        return true;
                    }
                }
            }
        }
        // The first event is sent at once, those that follow closely together.
        let ready = self.last_sent.map_or_else(Instant::now, |sent| sent + GROW);
        while self.received.len() < BATCH && !self.received.iter().any(|message| matches!(message, Message::Flush(_))) {
            let room = BATCH - self.received.len();
            match timeout_at(ready, self.queue.recv_many(&mut self.received, room)).await {
                Ok(1..) => {}
                Ok(0) | Err(_) => break,
            }
        }
        true
    }

    /// Sends one batch of the events received.
    async fn send(&mut self) -> Result<(), Failure> {
        let (mut text, mut taken, mut flushed) = (0, 0, Vec::new());
        let mut events = Vec::with_capacity(self.received.len());
        while taken < self.received.len().min(BATCH) && text < BATCH_TEXT {
            taken += 1;
            match &self.received[taken - 1] {
                Message::Event(event) => text += length(event),
                Message::Flush(_) => {}
            }
        }
        for message in self.received.drain(..taken) {
            match message {
                Message::Event(event) => events.push(event),
                Message::Flush(caller) => flushed.push(caller),
            }
        }
        let batch = EventBatch {
            first: self.next,
            events,
        };
        let kept = self.channel.post_events(&batch).await?;
        self.channel.judge(kept.verdict);
        self.next += batch.events.len() as u64;
        self.last_sent = Some(Instant::now());
        if kept.next != self.next {
            let (theirs, ours) = (kept.next, self.next);
            return Err(Failure::new(
                Code::Protocol,
                format!("the server waits for event {theirs}, the agent has sent all before {ours}"),
            ));
        }
        if kept.stop {
            self.channel
                .end(Ending::Failed(Failure::new(Code::Cancelled, "the job was cancelled")));
        }
        for caller in flushed {
            // The caller may have stopped waiting.
            let _ = caller.send(());
        }
        Ok(())
    }
}

fn length(event: &Event) -> usize {
    match &event.what {
        What::Log { text, .. } => text.len(),
        _ => 0,
    }
}
