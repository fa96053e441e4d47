//! Remote build nodes, API tokens and twins that failed.

use kiln::store::StoreError;
use kiln_records::{Code, FailedTwin, JobId, Moment, RemoteBuildNode, Role, Token, TokenId, TwinPair, arch::Arch};

use crate::store::place::Place;

on_both!(
    nodes_keep_their_order,
    tokens_are_found_by_digest,
    a_twin_that_failed_is_listed_once_and_the_oldest_are_forgotten,
);

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

async fn a_twin_that_failed_is_listed_once_and_the_oldest_are_forgotten(place: &Place) {
    let store = place.open().await;
    let failed = |path: &str, since| FailedTwin {
        pair: TwinPair {
            package: "bash".to_owned(),
            version: "5.2".to_owned(),
            path: path.to_owned(),
            target: Arch::Aarch64,
            host: Arch::X86_64,
        },
        job: JobId::new(),
        since: Moment::from_micros(since),
        code: Code::EmulatorFault,
    };
    let (old, new) = (failed("/usr/bin/bash", 1), failed("/usr/bin/sh", 2));
    // Another job may fail because of the same twin at the same time, and each may say so twice.
    for failed in [&old, &new, &failed("/usr/bin/bash", 3), &old] {
        store.add_failed_twin(failed).await.unwrap();
    }
    let all = [new.clone(), old.clone()];
    assert_eq!(store.failed_twins(None).await.unwrap(), all);
    assert_eq!(store.failed_twins(Some(Arch::Aarch64)).await.unwrap(), all);
    assert_eq!(store.failed_twins(Some(Arch::Riscv64)).await.unwrap(), []);

    assert!(store.forget_failed_twin(new.job).await.unwrap());
    assert!(!store.forget_failed_twin(new.job).await.unwrap());
    for number in 0..i64::from(FailedTwin::MOST) {
        let path = format!("/usr/bin/{number}");
        store.add_failed_twin(&failed(&path, 10 + number)).await.unwrap();
    }
    let kept = store.failed_twins(None).await.unwrap();
    assert_eq!(kept.len(), FailedTwin::MOST as usize);
    assert!(!kept.contains(&old));
}
