//! The one connection that writes to the database, and the task that owns it.
//!
//! A commit waits for the disk, so writes that arrive meanwhile are put into one transaction and committed together,
//! each in its own savepoint: the failure of one does not affect the others.

use futures::future::BoxFuture;
use sqlx::{ConnectOptions, Connection, Executor, SqliteConnection, sqlite::SqliteConnectOptions};
use tokio::sync::{mpsc, oneshot};

use crate::store::{Result, StoreError};

/// The most writes in one commit; further ones wait for the next.
const BATCH: usize = 64;

/// Passes writes to the task that owns the connection.
#[derive(Debug)]
pub(super) struct Writer {
    queue: mpsc::UnboundedSender<Message>,
}

enum Message {
    Write(Box<dyn Write>),
    Close(oneshot::Sender<()>),
}

impl Writer {
    /// Starts the task with this connection. After a failure, it opens new connections with `options`.
    pub(super) fn start(connection: SqliteConnection, options: SqliteConnectOptions) -> Self {
        let (queue, messages) = mpsc::unbounded_channel();
        let task = Task {
            connection,
            options,
            messages,
        };
        tokio::spawn(task.run());
        Self { queue }
    }

    /// Does the work in a transaction, even if the caller goes away. The result is durable.
    pub(super) async fn write<T, W>(&self, work: W) -> Result<T>
    where
        T: Send + 'static,
        W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send + 'static,
    {
        let (caller, answer) = oneshot::channel();
        let write = Message::Write(Box::new(Pending {
            work: Some(work),
            result: None,
            caller,
        }));
        // One of the two calls fails when the task is gone.
        let _ = self.queue.send(write);
        answer.await.map_err(|_| closed())?
    }

    /// Whether the connection is closed.
    pub(super) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Finishes earlier writes and closes the connection.
    pub(super) async fn close(&self) {
        let (caller, closed) = oneshot::channel();
        let _ = self.queue.send(Message::Close(caller));
        let _ = closed.await;
    }
}

/// A write, with its result type hidden.
trait Write: Send {
    /// Does the work.
    fn run<'c>(&'c mut self, db: &'c mut SqliteConnection) -> BoxFuture<'c, Outcome>;
    /// Answers the caller, once the write is durable or has failed for good.
    fn answer(self: Box<Self>, committed: Result<()>);
}

/// The outcome of a write.
enum Outcome {
    /// The write is to be kept.
    Done,
    /// The write is to be rolled back.
    Refused,
    /// The database failed, so the state of the transaction is unknown.
    Failed(String),
}

struct Pending<T, W> {
    work: Option<W>,
    result: Option<Result<T>>,
    caller: oneshot::Sender<Result<T>>,
}

impl<T, W> Write for Pending<T, W>
where
    T: Send,
    W: for<'c> FnOnce(&'c mut SqliteConnection) -> BoxFuture<'c, Result<T>> + Send,
{
    fn run<'c>(&'c mut self, db: &'c mut SqliteConnection) -> BoxFuture<'c, Outcome> {
        Box::pin(async {
            let Some(work) = self.work.take() else {
                return Outcome::Refused;
            };
            match self.result.insert(work(db).await) {
                Ok(_) => Outcome::Done,
                Err(StoreError::Unavailable(error)) => Outcome::Failed(error.clone()),
                Err(_) => Outcome::Refused,
            }
        })
    }

    fn answer(self: Box<Self>, committed: Result<()>) {
        let result = self.result.unwrap_or_else(|| Err(closed()));
        // The caller may be gone by now.
        let _ = self.caller.send(committed.and(result));
    }
}

/// Owns the connection.
struct Task {
    connection: SqliteConnection,
    options: SqliteConnectOptions,
    messages: mpsc::UnboundedReceiver<Message>,
}

impl Task {
    async fn run(mut self) {
        let mut closing = None;
        while closing.is_none() {
            match self.messages.recv().await {
                Some(Message::Write(first)) => closing = self.commit_together(first).await,
                Some(Message::Close(caller)) => closing = Some(caller),
                None => break,
            }
        }
        // From now on the writer is known to be closed, also while the connection is not yet.
        self.messages.close();
        if let Err(error) = self.connection.close().await {
            tracing::warn!(%error, "the database was not closed properly");
        }
        if let Some(caller) = closing {
            let _ = caller.send(());
        }
    }

    /// Runs a write and those queued behind it, and commits them.
    async fn commit_together(&mut self, first: Box<dyn Write>) -> Option<oneshot::Sender<()>> {
        let mut batch = vec![first];
        let mut closing = None;
        let committed = self.transaction(&mut batch, &mut closing).await;
        if committed.is_err() {
            self.begin_anew().await;
        }
        for write in batch {
            write.answer(committed.clone().map_err(StoreError::Unavailable));
        }
        closing
    }

    async fn transaction(
        &mut self,
        batch: &mut Vec<Box<dyn Write>>,
        closing: &mut Option<oneshot::Sender<()>>,
    ) -> std::result::Result<(), String> {
        let text = |error: sqlx::Error| error.to_string();
        // Takes the write lock at once: a transaction that begins by reading and writes later cannot wait for another
        // process; it fails.
        self.connection.execute("BEGIN IMMEDIATE").await.map_err(text)?;
        let mut next = batch.first_mut();
        while let Some(write) = next {
            self.connection.execute("SAVEPOINT one").await.map_err(text)?;
            match write.run(&mut self.connection).await {
                Outcome::Done => {}
                Outcome::Refused => {
                    self.connection.execute("ROLLBACK TO one").await.map_err(text)?;
                }
                Outcome::Failed(error) => return Err(error),
            }
            self.connection.execute("RELEASE one").await.map_err(text)?;
            next = None;
            if batch.len() < BATCH && closing.is_none() {
                match self.messages.try_recv() {
                    Ok(Message::Write(write)) => {
                        batch.push(write);
                        next = batch.last_mut();
                    }
                    Ok(Message::Close(caller)) => *closing = Some(caller),
                    Err(_) => {}
                }
            }
        }
        self.connection.execute("COMMIT").await.map_err(text)?;
        Ok(())
    }

    /// Discards a failed transaction. SQLite may have ended it already, as it does when the disk is full, so a
    /// rollback is not enough; a new connection is certain to be in no transaction.
    async fn begin_anew(&mut self) {
        let _ = self.connection.execute("ROLLBACK").await;
        match self.options.connect().await {
            Ok(connection) => self.connection = connection,
            Err(error) => tracing::error!(%error, "the database cannot be opened again"),
        }
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the database is closed".to_owned())
}
