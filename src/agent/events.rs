//! Sends events to the server: in order, without gaps, in batches, and with a sign of life when nothing happens. Uses
//! the channel only.

use std::time::Duration;

use jiff::Timestamp;
use kiln_records::{
    Code, Failure,
    protocol::{Event, EventBatch, Stream, What},
};
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout_at},
};

use super::channel::{Channel, Ending};

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

/// Longer lines are cut: users do not read them, and they would take memory everywhere on their way.
const LONGEST_LINE: usize = 16 * 1024;

enum Message {
    Event(Event),
    Flush(oneshot::Sender<()>),
}

/// Takes events. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Events {
    messages: mpsc::Sender<Message>,
}

impl Events {
    /// Starts to send over `channel`, in a task that ends with the last clone of these events, or when the server
    /// accepts no more; in the latter case it stops the agent through the channel.
    pub fn new(channel: Channel) -> Self {
        let (messages, queue) = mpsc::channel(WAITING);
        let sender = Sender {
            channel,
            queue,
            received: Vec::with_capacity(BATCH),
            next: 0,
            last_sent: None,
        };
        tokio::spawn(sender.run());
        Self { messages }
    }

    /// Reports an event.
    pub async fn send(&self, what: What) {
        // The loss of the server is noticed by the next call, not here.
        let _ = self.messages.send(now(what)).await;
    }

    /// Logs a line of the agent itself.
    pub async fn say(&self, text: impl Into<String>) {
        self.send(line(Stream::Agent, text.into())).await;
    }

    /// The same for blocking code.
    pub fn say_blocking(&self, text: &str) {
        let _ = self.messages.blocking_send(now(line(Stream::Agent, text.to_owned())));
    }

    /// The same for code that may neither block nor wait. The line may be late when the queue is full.
    pub fn say_soon(&self, text: &str) {
        let message = now(line(Stream::Agent, text.to_owned()));
        if let Err(mpsc::error::TrySendError::Full(message)) = self.messages.try_send(message) {
            let messages = self.messages.clone();
            tokio::spawn(async move { messages.send(message).await });
        }
    }

    /// Reports a step's progress, for code that may not wait: dropped when the queue is full.
    pub fn progress_soon(&self, done: u64, total: u64) {
        let _ = self.messages.try_send(now(What::Progress { done, total }));
    }

    /// Returns when the server has stored all earlier events, or never will.
    pub async fn flush(&self) {
        let (caller, flushed) = oneshot::channel();
        if self.messages.send(Message::Flush(caller)).await.is_ok() {
            let _ = flushed.await;
        }
    }
}

/// A log event, cut to a readable length.
pub(super) fn line(stream: Stream, mut text: String) -> What {
    if text.len() > LONGEST_LINE {
        let end = text.floor_char_boundary(LONGEST_LINE);
        text.truncate(end);
        text.push_str(" … (line cut)");
    }
    What::Log { stream, text }
}

fn now(what: What) -> Message {
    Message::Event(Event {
        time: Timestamp::now(),
        what,
    })
}

/// The task behind [`Events`].
struct Sender {
    channel: Channel,
    queue: mpsc::Receiver<Message>,
    /// Events that were taken off the queue and not sent yet.
    received: Vec<Message>,
    /// Number of the next event.
    next: u64,
    last_sent: Option<Instant>,
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
        if self.received.is_empty() {
            let silent = self.last_sent.unwrap_or_else(Instant::now) + HEARTBEAT;
            tokio::select! {
                count = self.queue.recv_many(&mut self.received, BATCH) => if count == 0 { return false },
                () = sleep_until(silent) => return true,
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
        while taken < self.received.len() && text < BATCH_TEXT {
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
