//! Implements [`RemoteBuildNodes`]. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::RemoteBuildNode;
use sqlx::{Executor, Row as _};

use super::{Row, Statement, ThisStore, statements::push_end_of_list};
use crate::store::{Lock, RemoteBuildNodes, Result};

const TABLE: &str = "remote_build_nodes";

#[async_trait]
impl RemoteBuildNodes for ThisStore {
    async fn put_node(&self, node: &RemoteBuildNode) -> Result<()> {
        let mut statement = Statement::new("INSERT INTO remote_build_nodes (xname, position) VALUES (");
        statement.push_bind(node.xname.clone()).push(", ");
        push_end_of_list(&mut statement, TABLE, None);
        statement.push(") ON CONFLICT DO NOTHING");
        self.write_one(statement).await.map(|_| ())
    }

    async fn nodes(&self) -> Result<Vec<RemoteBuildNode>> {
        let statement = "SELECT xname FROM remote_build_nodes ORDER BY position, xname";
        let rows = self.readers().fetch_all(statement).await?;
        rows.iter().map(read).collect()
    }

    async fn node(&self, xname: &str) -> Result<Option<RemoteBuildNode>> {
        // PostgreSQL refuses such a text in a query.
        if xname.contains('\0') {
            return Ok(None);
        }
        let mut statement = Statement::new("SELECT xname FROM remote_build_nodes WHERE xname = ");
        statement.push_bind(xname.to_owned());
        let row = self.readers().fetch_optional(statement.build()).await?;
        row.as_ref().map(read).transpose()
    }

    async fn delete_nodes(&self, xname: Option<&str>) -> Result<u64> {
        if xname.is_some_and(|xname| xname.contains('\0')) {
            return Ok(0);
        }
        let mut statement = Statement::new("DELETE FROM remote_build_nodes");
        if let Some(xname) = xname {
            statement.push(" WHERE xname = ").push_bind(xname.to_owned());
        }
        self.write_from_reserve(Lock::Alone, |db| {
            Box::pin(async move { Ok(db.execute(statement.build()).await?.rows_affected()) })
        })
        .await
    }
}

fn read(row: &Row) -> Result<RemoteBuildNode> {
    Ok(RemoteBuildNode { xname: row.try_get(0)? })
}
