//! The server that a registry sends its clients to for a token: it takes a user and a password, and signs what they may do.

use std::convert::Infallible;
use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, anyhow};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::AUTHORIZATION;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode, server};
use hyper_util::rt::TokioIo;
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

/// The service and the issuer that the registry and the tokens name.
const NAME: &str = "testbed";
/// Seconds.
const LIFETIME: u64 = 300;

/// Runs until it is dropped.
#[derive(Debug)]
pub(crate) struct TokenServer {
    address: SocketAddr,
    keys: PathBuf,
    signer: Arc<Signer>,
    accepting: JoinHandle<()>,
}

#[derive(Debug)]
struct Signer {
    key: EcdsaKeyPair,
    random: SystemRandom,
    /// What a client that knows the password sends.
    authorization: String,
}

impl TokenServer {
    pub(crate) async fn start(dir: &Path, ip: IpAddr, user: &str, password: &str) -> Result<Self> {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random)
            .map_err(|e| anyhow!("make a key: {e}"))?;
        let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random)
            .map_err(|e| anyhow!("read a key: {e}"))?;
        // An uncompressed point: 4, x, y.
        let point = key.public_key().as_ref();
        let (x, y) = point
            .get(1..33)
            .zip(point.get(33..65))
            .context("a key of another kind")?;
        let (x, y) = (URL_SAFE_NO_PAD.encode(x), URL_SAFE_NO_PAD.encode(y));
        let jwk = json!({"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": NAME, "x": x, "y": y});
        let keys = dir.join("token-keys.json");
        fs::write(&keys, serde_json::to_vec(&json!({"keys": [jwk]}))?)?;

        let authorization = format!("Basic {}", STANDARD.encode(format!("{user}:{password}")));
        let signer = Arc::new(Signer {
            key,
            random,
            authorization,
        });
        let listener = TcpListener::bind((ip, 0)).await?;
        let address = listener.local_addr()?;
        let accepting = tokio::spawn(accept(listener, signer.clone()));
        Ok(Self {
            address,
            keys,
            signer,
            accepting,
        })
    }

    /// The part of the registry's configuration that sends clients here.
    pub(crate) fn configuration(&self) -> Value {
        let realm = format!("http://{}/token", self.address);
        json!({"token": {"realm": realm, "service": NAME, "issuer": NAME, "jwks": self.keys, "signingalgorithms": ["ES256"]}})
    }

    /// A token for everything in a repository.
    pub(crate) fn all_rights(&self, repository: &str) -> Result<String> {
        self.signer
            .token(&[access(repository, &["pull", "push", "delete"])])
    }
}

impl Drop for TokenServer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn accept(listener: TcpListener, signer: Arc<Signer>) {
    while let Ok((stream, _)) = listener.accept().await {
        let signer = signer.clone();
        let service = service_fn(move |request| {
            let answer = signer.answer(&request);
            async { Ok::<_, Infallible>(answer) }
        });
        // Ends with the client's connection.
        tokio::spawn(
            server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service),
        );
    }
}

impl Signer {
    fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        // Clients try OAuth by POST first, and take this for "not here".
        if request.method() != Method::GET {
            return status(StatusCode::METHOD_NOT_ALLOWED);
        }
        if request
            .headers()
            .get(AUTHORIZATION)
            .is_none_or(|a| a != self.authorization.as_str())
        {
            return status(StatusCode::UNAUTHORIZED);
        }
        let query = request.uri().query().unwrap_or_default().to_owned();
        let scopes = query
            .split('&')
            .filter_map(|pair| pair.strip_prefix("scope="))
            .map(percent_decoded);
        let granted: Vec<_> = scopes.filter_map(|scope| granted(&scope)).collect();
        match self.token(&granted) {
            Ok(token) => Response::new(Full::from(
                json!({"token": token, "expires_in": LIFETIME}).to_string(),
            )),
            Err(_) => status(StatusCode::INTERNAL_SERVER_ERROR),
        }
    }

    /// A JSON web token (RFC 7519).
    fn token(&self, access: &[Value]) -> Result<String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": NAME});
        let claims = json!({
            "iss": NAME, "aud": NAME, "sub": NAME, "jti": format!("{now}"),
            "iat": now, "nbf": now.saturating_sub(1), "exp": now + LIFETIME,
            "access": access,
        });
        let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self
            .key
            .sign(&self.random, signed.as_bytes())
            .map_err(|e| anyhow!("sign a token: {e}"))?;
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

fn status(status: StatusCode) -> Response<Full<Bytes>> {
    let mut answer = Response::new(Full::default());
    *answer.status_mut() = status;
    answer
}

/// `repository:NAME:ACTIONS`; whoever knows the password may do all that they ask for.
fn granted(scope: &str) -> Option<Value> {
    let (name, actions) = scope.strip_prefix("repository:")?.rsplit_once(':')?;
    Some(access(name, &actions.split(',').collect::<Vec<_>>()))
}

fn access(repository: &str, actions: &[&str]) -> Value {
    json!({"type": "repository", "name": repository, "actions": actions})
}

fn percent_decoded(text: &str) -> String {
    let mut pieces = text.split('%');
    let mut decoded = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece
            .split_at_checked(2)
            .and_then(|(hex, rest)| Some((u8::from_str_radix(hex, 16).ok()?, rest)))
        {
            Some((byte, rest)) => {
                decoded.push(char::from(byte));
                decoded.push_str(rest);
            }
            None => decoded.push_str(piece),
        }
    }
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scope_is_granted_as_it_is_asked_for() {
        let scope = percent_decoded("repository%3Ateam%2Fapp%3Apull,push");
        assert_eq!(granted(&scope), Some(access("team/app", &["pull", "push"])));
        assert_eq!(granted("registry:catalog:*"), None);
    }
}
