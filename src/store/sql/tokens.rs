//! Implements [`Tokens`]: API tokens. Touches the store's database only.

use async_trait::async_trait;
use kiln_records::{Token, TokenId};

use super::{
    Statement, ThisStore,
    rows::read_token,
    statements::{insert, select},
};
use crate::store::{Result, Tokens, table::Value};

#[async_trait]
impl Tokens for ThisStore {
    async fn insert_token(&self, token: &Token, sha256: &str) -> Result<()> {
        let statement = insert(token, None, vec![("sha256", Value::text(sha256))]);
        self.write_one(statement).await.map(|_| ())
    }

    async fn token(&self, sha256: &str) -> Result<Option<Token>> {
        let mut statement = select::<Token>();
        statement.push(" WHERE sha256 = ").push_bind(sha256.to_owned());
        let row = self.readers().fetch_optional(statement.build()).await?;
        row.as_ref().map(read_token).transpose()
    }

    async fn tokens(&self) -> Result<Vec<Token>> {
        let mut statement = select::<Token>();
        statement.push(" ORDER BY position, id");
        let rows = self.readers().fetch_all(statement.build()).await?;
        rows.iter().map(read_token).collect()
    }

    async fn delete_token(&self, id: TokenId) -> Result<bool> {
        let mut statement = Statement::new("DELETE FROM tokens WHERE id = ");
        statement.push_bind(id.to_string());
        Ok(self.write_one_from_reserve(statement).await? > 0)
    }
}
