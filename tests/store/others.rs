//! Remote build nodes and API tokens.

use kiln::store::StoreError;
use kiln_records::{Moment, RemoteBuildNode, Role, Token, TokenId};

use crate::store::place::Place;

on_both!(nodes_keep_their_order, tokens_are_found_by_digest);

async fn nodes_keep_their_order(place: &Place) {
    let store = place.open().await;
    let nodes = ["x9", "x1", "X5"].map(|xname| RemoteBuildNode {
        xname: xname.to_owned(),
    });
    for node in nodes.iter().chain(&nodes[..1]) {
        store.put_node(node).await.unwrap();
    }
    assert_eq!(store.nodes().await.unwrap(), nodes);
    assert_eq!(store.node("x1").await.unwrap().as_ref(), Some(&nodes[1]));
    for unknown in ["x2", "", "x1\0"] {
        assert_eq!(store.node(unknown).await.unwrap(), None);
        assert_eq!(store.delete_nodes(Some(unknown)).await.unwrap(), 0);
    }
    assert_eq!(store.delete_nodes(Some("x9")).await.unwrap(), 1);
    store.put_node(&nodes[0]).await.unwrap();
    assert_eq!(store.nodes().await.unwrap().last(), Some(&nodes[0]));
    assert_eq!(store.delete_nodes(None).await.unwrap(), 3);
    assert_eq!(store.nodes().await.unwrap(), []);
}

async fn tokens_are_found_by_digest(place: &Place) {
    let store = place.open().await;
    let tokens = Role::ALL.map(|role| Token {
        id: TokenId::new(),
        created: Moment::now(),
        name: format!("for {}", role.name()),
        role,
        expires: (role == Role::Read).then_some(Moment::from_micros(7)),
    });
    for token in &tokens {
        store
            .insert_token(token, &format!("sha of {}", token.name))
            .await
            .unwrap();
    }
    assert_eq!(store.tokens().await.unwrap(), tokens);
    assert_eq!(
        store.token("sha of for write").await.unwrap().as_ref(),
        Some(&tokens[1])
    );
    assert_eq!(store.token("sha of").await.unwrap(), None);
    let again = Token {
        id: TokenId::new(),
        ..tokens[0].clone()
    };
    for (token, sha256) in [(&again, "sha of for read"), (&tokens[0], "another")] {
        let taken = store.insert_token(token, sha256).await;
        assert!(matches!(taken, Err(StoreError::Exists)), "{taken:?}");
    }
    assert!(store.delete_token(tokens[1].id).await.unwrap());
    assert!(!store.delete_token(tokens[1].id).await.unwrap());
    assert_eq!(store.token("sha of for write").await.unwrap(), None);
}
