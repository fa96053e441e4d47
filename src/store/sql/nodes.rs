//! Implements [`RemoteBuildNodes`]. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::RemoteBuildNode;
use sqlx::{Executor, Row as _};

use super::{
    Row, Statement, ThisStore,
    budget::{Budget, NODES},
    rows::push,
    statements::push_end_of_list,
};
use crate::store::{Lock, RemoteBuildNodes, Result};

#[async_trait]
impl RemoteBuildNodes for ThisStore {
    async fn put_node(&self, node: &RemoteBuildNode) -> Result<()> {
        let budget = Budget::of(NODES);
        let (column, caller) = budget.column();
        let mut known = Statement::new("SELECT 1 FROM remote_build_nodes WHERE xname = ");
        known.push_bind(node.xname.clone());
        let mut add = Statement::new(format!("INSERT INTO {NODES} (xname, {column}, position) VALUES ("));
        add.push_bind(node.xname.clone()).push(", ");
        push(&mut add, caller);
        add.push(", ");
        push_end_of_list(&mut add, NODES, None);
        add.push(") ON CONFLICT DO NOTHING");
        self.write(Lock::Shared, move |db| {
            Box::pin(async move {
                if db.fetch_optional(known.build()).await?.is_none() {
                    budget.check(db).await?;
                    db.execute(add.build()).await?;
                }
                Ok(())
            })
        })
        .await
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
