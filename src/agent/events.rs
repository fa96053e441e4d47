//! What happens, on its way to the server: in order, without holes, in batches, and a sign of life when nothing does.

use std::time::Duration;

use jiff::Timestamp;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until, timeout_at},
};

use super::channel::{Channel, Ending};
use crate::records::{
    Code, Failure,
    protocol::{Event, EventBatch, Stream, What},
};

/// Events that wait to be sent before a tool that talks too fast is slowed down.
const WAITING: usize = 2_000;

/// Events in one batch at most.
const BATCH: usize = 200;

/// Text in one batch, in bytes: beyond this nothing more is added.
const BATCH_TEXT: usize = 1024 * 1024;

/// How long a batch may grow when another was just sent.
const GROW: Duration = Duration::from_millis(250);

/// After this time without an event the server hears that the agent is alive.
const HEARTBEAT: Duration = Duration::from_secs(10);

/// Longer lines are cut: no human reads them, and they would hold memory at every hop.
const LONGEST_LINE: usize = 16 * 1024;

enum Message {
    Event(Event),
    Flush(oneshot::Sender<()>),
}

/// Takes what happens. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Events {
    messages: mpsc::Sender<Message>,
}

impl Events {
    /// Starts sending over `channel`, in a task that ends with the last clone of these events, or when the server
    /// takes no more; the channel is told then that the agent is to stop.
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

    /// Something happened.
    pub async fn send(&self, what: What) {
        // A server that is gone is noticed by the next call, not here.
        let _ = self.messages.send(now(what)).await;
    }

    /// The agent itself says a line.
    pub async fn say(&self, text: impl Into<String>) {
        self.send(line(Stream::Agent, text.into())).await;
    }

    /// The same from code that blocks.
    pub fn say_blocking(&self, text: &str) {
        let _ = self.messages.blocking_send(now(line(Stream::Agent, text.to_owned())));
    }

    /// The same from code that can neither block nor wait. A line may come late when the queue is full.
    pub fn say_soon(&self, text: &str) {
        let message = now(line(Stream::Agent, text.to_owned()));
        if let Err(mpsc::error::TrySendError::Full(message)) = self.messages.try_send(message) {
            let messages = self.messages.clone();
            tokio::spawn(async move { messages.send(message).await });
        }
    }

    /// How far the step is, from code that cannot wait: what does not fit into the queue is left out.
    pub fn progress_soon(&self, done: u64, total: u64) {
        let _ = self.messages.try_send(now(What::Progress { done, total }));
    }

    /// Returns when the server has kept everything sent so far, or never will.
    pub async fn flush(&self) {
        let (caller, flushed) = oneshot::channel();
        if self.messages.send(Message::Flush(caller)).await.is_ok() {
            let _ = flushed.await;
        }
    }
}

/// A log event, cut to a length that somebody may read.
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
    /// Taken off the queue and not sent yet.
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

    /// Waits for something to send, which may be no more than a sign of life. False when nobody will say anything any
    /// more.
    async fn gather(&mut self) -> bool {
        if self.received.is_empty() {
            let silent = self.last_sent.unwrap_or_else(Instant::now) + HEARTBEAT;
            tokio::select! {
                count = self.queue.recv_many(&mut self.received, BATCH) => if count == 0 { return false },
                () = sleep_until(silent) => return true,
            }
        }
        // The first event goes at once, those in its wake together.
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

    /// Sends one batch of what was gathered.
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
            // Who no longer waits need not know.
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
