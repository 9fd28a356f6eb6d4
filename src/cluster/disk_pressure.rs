//! What the own Node says of its disks, for whoever asks.
//!
//! The condition is in the Node's status, which changes all the time and can name fifty images: the watch of the own Node leaves it
//! out, and so does the taint that comes with the condition, as it is in the spec. So it is read when a pull needs to know, from
//! the API server's cache; a node that pulls nothing asks nothing.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::GetParams;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tracing::debug;

use super::client::Cluster;
use crate::decide::disk::NodeSays;

/// The Node's condition; with this status its kubelet evicts Pods to get room.
const DISK_PRESSURE: (&str, &str) = ("DiskPressure", "True");

/// Answers every question about this Node, until `stop`.
pub async fn answer(
    cluster: &Cluster,
    name: &str,
    mut questions: mpsc::Receiver<oneshot::Sender<NodeSays>>,
    stop: &CancellationToken,
) {
    let nodes = Api::<Node>::all(cluster.client());
    let answers = async {
        while let Some(question) = questions.recv().await {
            // Any version will do: the cache is as new as a watch.
            let said = match cluster.call(nodes.get_with(name, &GetParams::any())).await {
                Ok(node) => says(&node),
                Err(error) => {
                    debug!(%error, "the Node could not be asked for its disk pressure");
                    NodeSays::Nothing
                }
            };
            // Who has asked may have gone on without an answer.
            let _ = question.send(said);
        }
    };
    stop.run_until_cancelled(answers).await;
    stop.cancelled().await;
}

fn says(node: &Node) -> NodeSays {
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let pressure = conditions
        .flatten()
        .find(|condition| (condition.type_.as_str(), condition.status.as_str()) == DISK_PRESSURE);
    let Some(pressure) = pressure else {
        return NodeSays::NoPressure;
    };
    let message = pressure.message.as_deref().filter(|said| !said.is_empty());
    let message = message.unwrap_or("its kubelet gives no message");
    NodeSays::Pressure(format!(
        "the Node has the condition DiskPressure: {message}"
    ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_a_condition_that_is_true_is_pressure() {
        let of = |conditions: Value| {
            let node = json!({"metadata": {}, "status": {"conditions": conditions}});
            says(&serde_json::from_value(node).unwrap())
        };
        let condition =
            |kind: &str, status: &str| json!([{"type": kind, "status": status, "message": "full"}]);
        for calm in [
            json!([]),
            condition("DiskPressure", "False"),
            condition("DiskPressure", "Unknown"),
            condition("MemoryPressure", "True"),
        ] {
            assert_eq!(of(calm.clone()), NodeSays::NoPressure, "{calm}");
        }
        let said = "the Node has the condition DiskPressure: full";
        assert_eq!(
            of(condition("DiskPressure", "True")),
            NodeSays::Pressure(said.to_owned())
        );
        assert_eq!(says(&Node::default()), NodeSays::NoPressure);
    }
}
