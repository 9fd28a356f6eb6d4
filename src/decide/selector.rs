//! Whether an image list is meant for a node.

use std::collections::BTreeMap;

use crate::api::{ImageList, MatchExpression, Operator};

/// The labels of a node, however they are kept.
pub trait Labels {
    /// The value of the label with this key.
    fn value(&self, key: &str) -> Option<&str>;
}

impl Labels for BTreeMap<String, String> {
    fn value(&self, key: &str) -> Option<&str> {
        self.get(key).map(String::as_str)
    }
}

/// Whether a node with these labels carries all of `nodeSelector` and meets all of `matchExpressions`. No condition at all selects every node.
#[must_use]
pub fn selects(list: &ImageList, labels: &impl Labels) -> bool {
    list.node_selector
        .iter()
        .all(|(key, value)| labels.value(key) == Some(value.as_str()))
        && list
            .match_expressions
            .iter()
            .all(|expression| matches(expression, labels))
}

/// What Kubernetes' label selectors answer: a missing label is `NotIn` any values, and neither greater nor less than any number.
fn matches(expression: &MatchExpression, labels: &impl Labels) -> bool {
    let label = labels.value(&expression.key);
    let is_listed = || label.is_some_and(|label| expression.values.iter().any(|v| v == label));
    match expression.operator {
        Operator::In => is_listed(),
        Operator::NotIn => !is_listed(),
        Operator::Exists => label.is_some(),
        Operator::DoesNotExist => label.is_none(),
        Operator::Gt => integers(label, expression).is_some_and(|(label, bound)| label > bound),
        Operator::Lt => integers(label, expression).is_some_and(|(label, bound)| label < bound),
    }
}

/// The label and the one value that it is compared with. Rust reads the same texts as an `i64` as Go's `strconv.ParseInt` does.
fn integers(label: Option<&str>, expression: &MatchExpression) -> Option<(i64, i64)> {
    let [bound] = expression.values.as_slice() else {
        return None;
    };
    Some((label?.parse().ok()?, bound.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use std::slice::from_ref;

    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;
    use proptest::sample::select;

    use super::Operator::{DoesNotExist, Exists, Gt, In, Lt, NotIn};
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|&(key, value)| (key.to_owned(), value.to_owned()))
            .collect()
    }

    fn expression(key: &str, operator: Operator, values: &[&str]) -> MatchExpression {
        MatchExpression {
            key: key.to_owned(),
            operator,
            values: values.iter().map(|&value| value.to_owned()).collect(),
        }
    }

    fn list(node_selector: &[(&str, &str)], match_expressions: &[MatchExpression]) -> ImageList {
        ImageList {
            images: Vec::new(),
            node_selector: labels(node_selector),
            match_expressions: match_expressions.to_vec(),
        }
    }

    #[test]
    fn each_operator_answers_as_in_kubernetes() {
        let node = labels(&[
            ("zone", "a"),
            ("empty", ""),
            ("gpus", "4"),
            ("max", "9223372036854775807"),
            ("huge", "9223372036854775808"),
            ("padded", "007"),
        ]);
        for (key, operator, values, answer) in [
            ("zone", In, &["a"][..], true),
            ("zone", In, &["b", "a"], true),
            ("zone", In, &["b"], false),
            ("zone", In, &["A"], false),
            ("zone", In, &[], false),
            ("empty", In, &[""], true),
            ("missing", In, &["a"], false),
            ("missing", In, &[""], false),
            ("zone", NotIn, &["b"], true),
            ("zone", NotIn, &["b", "a"], false),
            ("zone", NotIn, &[], true),
            ("missing", NotIn, &["a"], true),
            ("missing", NotIn, &[""], true),
            ("zone", Exists, &[], true),
            ("empty", Exists, &[], true),
            ("missing", Exists, &[], false),
            ("zone", DoesNotExist, &[], false),
            ("empty", DoesNotExist, &[], false),
            ("missing", DoesNotExist, &[], true),
            ("gpus", Gt, &["3"], true),
            ("gpus", Gt, &["4"], false),
            ("gpus", Gt, &["+3"], true),
            ("gpus", Gt, &["-5"], true),
            // Numbers, not texts: "4" comes after "10" in the alphabet.
            ("gpus", Gt, &["10"], false),
            ("gpus", Lt, &["10"], true),
            ("gpus", Lt, &["5"], true),
            ("gpus", Lt, &["4"], false),
            ("padded", Gt, &["6"], true),
            ("padded", Lt, &["8"], true),
            ("max", Gt, &["9223372036854775806"], true),
            ("max", Lt, &["9223372036854775807"], false),
            ("huge", Gt, &["0"], false),
            ("gpus", Lt, &["9223372036854775808"], false),
            ("missing", Gt, &["0"], false),
            ("missing", Lt, &["0"], false),
            ("zone", Gt, &["0"], false),
            ("zone", Lt, &["0"], false),
            ("empty", Gt, &["0"], false),
            ("gpus", Gt, &["three"], false),
            ("gpus", Gt, &["3.5"], false),
            ("gpus", Gt, &["0x1"], false),
            ("gpus", Gt, &["1_0"], false),
            ("gpus", Gt, &[" 3"], false),
            ("gpus", Gt, &["+"], false),
            ("gpus", Gt, &[""], false),
            ("gpus", Gt, &[], false),
            ("gpus", Gt, &["1", "2"], false),
            ("gpus", Lt, &[], false),
        ] {
            assert_eq!(
                selects(&list(&[], &[expression(key, operator, values)]), &node),
                answer,
                "{key} {operator:?} {values:?}"
            );
        }
    }

    #[test]
    fn no_condition_selects_every_node() {
        assert!(selects(&list(&[], &[]), &labels(&[])));
        assert!(selects(&list(&[], &[]), &labels(&[("zone", "a")])));
    }

    #[test]
    fn every_condition_has_to_hold() {
        let node = labels(&[("zone", "a"), ("arch", "amd64")]);
        let in_zone_a = expression("zone", In, &["a"]);
        let without_gpu = expression("gpu", DoesNotExist, &[]);
        let with_gpu = expression("gpu", Exists, &[]);
        for (node_selector, match_expressions, answer) in [
            (&[("zone", "a")][..], &[][..], true),
            (&[("zone", "a"), ("arch", "amd64")], &[], true),
            (&[("zone", "a"), ("arch", "arm64")], &[], false),
            (&[("zone", "a"), ("missing", "")], &[], false),
            (
                &[("arch", "amd64")],
                &[in_zone_a.clone(), without_gpu.clone()],
                true,
            ),
            (&[("arch", "arm64")], from_ref(&in_zone_a), false),
            (&[], &[in_zone_a.clone(), with_gpu], false),
            // Two requirements on one label are two requirements.
            (
                &[],
                &[
                    expression("arch", NotIn, &["arm64"]),
                    expression("arch", NotIn, &["amd64"]),
                ],
                false,
            ),
        ] {
            assert_eq!(
                selects(&list(node_selector, match_expressions), &node),
                answer,
                "{node_selector:?} {match_expressions:?}"
            );
        }
    }

    fn any_label() -> impl Strategy<Value = String> {
        select(vec!["", "a", "b", "-1", "0", "7", "x7"]).prop_map(str::to_owned)
    }

    fn any_key() -> impl Strategy<Value = String> {
        select(vec!["k", "l", "m"]).prop_map(str::to_owned)
    }

    fn any_labels() -> impl Strategy<Value = BTreeMap<String, String>> {
        btree_map(any_key(), any_label(), 0..=3)
    }

    fn any_expression() -> impl Strategy<Value = MatchExpression> {
        (
            any_key(),
            select(vec![In, NotIn, Exists, DoesNotExist, Gt, Lt]),
            vec(any_label(), 0..3),
        )
            .prop_map(|(key, operator, values)| MatchExpression {
                key,
                operator,
                values,
            })
    }

    fn any_list() -> impl Strategy<Value = ImageList> {
        (any_labels(), vec(any_expression(), 0..4)).prop_map(
            |(node_selector, match_expressions)| ImageList {
                images: Vec::new(),
                node_selector,
                match_expressions,
            },
        )
    }

    fn answer(expression: MatchExpression, node: &BTreeMap<String, String>) -> bool {
        selects(&list(&[], &[expression]), node)
    }

    proptest! {
        #[test]
        fn a_list_selects_what_each_of_its_conditions_selects(list in any_list(), node in any_labels()) {
            let alone = list.match_expressions.iter().all(|expression| answer(expression.clone(), &node));
            let carried = list.node_selector.iter().all(|(key, value)| node.get(key) == Some(value));
            prop_assert_eq!(selects(&list, &node), alone && carried);
        }

        #[test]
        fn a_node_selector_is_an_in_with_one_value(key in any_key(), value in any_label(), node in any_labels()) {
            let selector = list(&[(&key, &value)], &[]);
            prop_assert_eq!(selects(&selector, &node), answer(expression(&key, In, &[&value]), &node));
        }

        #[test]
        fn an_operator_and_its_opposite_never_agree(mut expression in any_expression(), node in any_labels()) {
            let first = answer(expression.clone(), &node);
            let strict = matches!(expression.operator, Gt | Lt);
            expression.operator = match expression.operator {
                In => NotIn,
                NotIn => In,
                Exists => DoesNotExist,
                DoesNotExist => Exists,
                Gt => Lt,
                Lt => Gt,
            };
            let second = answer(expression, &node);
            // Neither holds for equal numbers, or where there is no number.
            let disagree = if strict { !(first && second) } else { first != second };
            prop_assert!(disagree);
        }

        #[test]
        fn gt_and_lt_compare_any_two_integers(label: i64, bound: i64) {
            let node = labels(&[("k", &label.to_string())]);
            let bounds = [&*bound.to_string()];
            prop_assert_eq!(answer(expression("k", Gt, &bounds), &node), label > bound);
            prop_assert_eq!(answer(expression("k", Lt, &bounds), &node), label < bound);
        }

        #[test]
        fn a_label_that_no_condition_names_changes_nothing(list in any_list(), node in any_labels(), value in any_label()) {
            let mut with_another = node.clone();
            with_another.insert("another".to_owned(), value);
            prop_assert_eq!(selects(&list, &with_another), selects(&list, &node));
        }
    }
}
