//! Registries that ask who somebody is, and write down what they were told.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use testbed::{FaultProxy, Listen, Registry, RegistryOptions, wait_for};

use super::fleet::{Fleet, SOON, image_of};

/// A user and a password.
pub type User = (&'static str, &'static str);

/// A registry on the nodes' network that wants a password, behind a proxy that records who asks.
pub struct Guarded {
    registry: Registry,
    proxy: FaultProxy,
}

impl Guarded {
    /// One that wants the password itself, or with `tokens` a token that another server gives for it.
    pub async fn start(fleet: &Fleet, name: &str, user: User, tokens: bool) -> Result<Self> {
        let lab = fleet.cluster.lab();
        let options = RegistryOptions {
            listen: Listen::Bridge,
            user: Some((user.0.to_owned(), user.1.to_owned())),
            tokens,
            ..RegistryOptions::default()
        };
        let registry = Registry::start(lab, name, options).await?;
        let proxy = FaultProxy::start(lab, Listen::Bridge, registry.address()).await?;
        let guarded = Self { registry, proxy };
        guarded.serves(fleet, &guarded.host())?;
        Ok(guarded)
    }

    /// From now on every node pulls the images of `host` from here.
    pub fn serves(&self, fleet: &Fleet, host: &str) -> Result<()> {
        for node in fleet.cluster.nodes() {
            node.containerd().mirror(host, &self.proxy.url(), None)?;
        }
        Ok(())
    }

    /// `IP:PORT`.
    pub fn host(&self) -> String {
        self.proxy.host()
    }

    /// Pushes small images under these names, and returns what nodes pull them by.
    pub async fn push<const N: usize>(&self, names: [&str; N]) -> Result<[String; N]> {
        for name in names {
            self.registry.push(name, &image_of(name)).await?;
        }
        Ok(names.map(|name| self.proxy.reference(name)))
    }

    /// For each version of containerd that has asked, whom it said to be: `USER:PASSWORD`, or the scheme where it is another one.
    /// One after the other, each once while it stays the same; nobody is left out.
    pub fn asked_as(&self) -> BTreeMap<String, Vec<String>> {
        let mut asked = BTreeMap::<String, Vec<String>>::new();
        for request in self.proxy.requests() {
            let users = asked.entry(request.agent).or_default();
            let user = request.authorization.as_deref().map(user);
            if let Some(user) = user.filter(|user| users.last() != Some(user)) {
                users.push(user);
            }
        }
        asked
    }

    /// Waits until every version of containerd has asked, and was these users only, in this order.
    pub async fn until_asked_as(&self, users: &[&str]) -> Result<()> {
        wait_for(
            format!("{} to be asked as {users:?}", self.host()),
            SOON,
            async || {
                let asked = self.asked_as();
                ensure!(
                    asked.len() == 3 && asked.values().all(|asked| asked == users),
                    "{asked:?}"
                );
                Ok(())
            },
        )
        .await
    }
}

fn user(authorization: &str) -> String {
    let (scheme, rest) = authorization.split_once(' ').unwrap_or((authorization, ""));
    let pair = STANDARD.decode(rest).ok().filter(|_| scheme == "Basic");
    pair.map_or_else(
        || scheme.to_owned(),
        |pair| String::from_utf8_lossy(&pair).into_owned(),
    )
}

/// What `kubectl create secret docker-registry` would put into a Secret, for several registries.
pub fn config(entries: &[(&str, User)]) -> String {
    let entry = |(key, user): &(&str, User)| {
        let entry = json!({"username": user.0, "password": user.1, "email": "nobody@example.com"});
        ((*key).to_owned(), entry)
    };
    let auths: Map<String, Value> = entries.iter().map(entry).collect();
    json!({"auths": auths}).to_string()
}

/// Lets the agents read the Secrets of a namespace, as `docs/security.md` says.
pub async fn let_agents_read(fleet: &Fleet, namespace: &str) -> Result<()> {
    let bind = [
        "create",
        "rolebinding",
        "imagecache-pull-secrets",
        "--clusterrole=imagecache-pull-secrets",
        "--serviceaccount=imagecache-system:imagecache-agent",
        "--namespace",
        namespace,
    ];
    fleet.cluster.kubectl(&bind).await.map(drop)
}
