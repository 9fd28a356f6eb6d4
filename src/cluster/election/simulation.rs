//! A cluster of agents that elect one of them, over a network that delays and loses, with clocks that agree on nothing.

#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

use proptest::prelude::*;

use super::*;

/// A trouble of one agent, in tenths of seconds.
#[derive(Clone, Debug)]
enum Fault {
    /// Killed: it never comes back.
    Kill,
    /// Stopped in good order.
    Stop,
    /// Cut off the API server for so long.
    Cut(u32),
    /// It does not run for so long; its clock does.
    Freeze(u32),
}

/// One agent of a simulated cluster. Its clock began at `offset`, so no two clocks show the same.
struct Agent {
    election: Election,
    offset: Duration,
    gone: bool,
    cut_until: Duration,
    frozen_until: Duration,
    under_way: Option<UnderWay>,
}

/// A question under way: when it reaches the API server (if it does), when its answer comes.
struct UnderWay {
    ask: Ask,
    lease: Lease,
    sent: Duration,
    arrives: Option<Duration>,
    answered: Option<Answer>,
    returns: Duration,
    lost: bool,
}

impl Agent {
    fn clock(&self, now: Duration) -> Duration {
        now + self.offset
    }
}

#[derive(Default)]
struct Server {
    lease: Option<Lease>,
    version: u64,
    looks: u32,
}

impl Server {
    fn answer(&mut self, ask: Ask, wish: &Lease) -> Answer {
        self.looks += u32::from(ask == Ask::Look);
        let current = self
            .lease
            .as_ref()
            .map(|l| l.metadata.resource_version.clone());
        match (ask, current) {
            (Ask::Look, None) => Answer::Absent,
            (Ask::Look, Some(_)) => Answer::Lease(Box::new(self.lease.clone().unwrap())),
            (_, current) if current.clone().flatten() != wish.metadata.resource_version => {
                Answer::Conflict
            }
            _ => {
                self.version += 1;
                let mut lease = wish.clone();
                lease.metadata.resource_version = Some(self.version.to_string());
                self.lease = Some(lease.clone());
                Answer::Lease(Box::new(lease))
            }
        }
    }
}

const STEP: Duration = Duration::from_millis(100);

/// A cluster of agents and an API server, in steps of a tenth of a second.
struct Simulation {
    agents: Vec<Agent>,
    server: Server,
    random: fastrand::Rng,
    now: Duration,
    /// How many messages are lost, from 0 to 1.
    loss: f64,
    /// How long a message travels at most, in tenths of seconds.
    wire: u32,
}

impl Simulation {
    fn of(count: usize, seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let agents = (0..count)
            .map(|n| {
                let offset = Duration::from_secs(random.u64(0..1_000_000));
                let identity = format!("agent-{n}");
                let mut election = Election::new(identity, &Timing::default(), random.f64());
                // Its clock does not begin at zero: the first look is due from there.
                election.due += offset;
                Agent {
                    election,
                    offset,
                    gone: false,
                    cut_until: Duration::ZERO,
                    frozen_until: Duration::ZERO,
                    under_way: None,
                }
            })
            .collect();
        Self {
            agents,
            server: Server::default(),
            random,
            now: Duration::ZERO,
            loss: 0.0,
            wire: 1,
        }
    }

    fn meets(&mut self, who: usize, fault: &Fault) {
        let agent = &mut self.agents[who];
        match fault {
            Fault::Cut(tenths) => agent.cut_until = self.now + STEP * *tenths,
            Fault::Freeze(tenths) => agent.frozen_until = self.now + STEP * *tenths,
            Fault::Kill => agent.gone = true,
            Fault::Stop => {
                agent.election.resign();
                let clock = agent.clock(self.now);
                for ask in [Ask::Release, Ask::Look, Ask::Release] {
                    if !agent.gone && agent.election.holds() {
                        let wish = agent.election.wish(ask, None);
                        let answer = self.server.answer(ask, &wish);
                        agent
                            .election
                            .hear(ask, answer, clock, clock, Scale::default(), 0.5);
                    }
                }
                agent.gone = true;
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        let (now, loss, wire) = (self.now, self.loss, self.wire);
        let random = &mut self.random;
        let limit = Timing::default().election_renew;
        let scale = Scale {
            nodes: u32::try_from(self.agents.len()).unwrap(),
        };
        for agent in &mut self.agents {
            // What is on the wire arrives, whatever became of its sender.
            if let Some(way) = &mut agent.under_way
                && way.arrives.is_some_and(|arrives| arrives <= now)
            {
                way.arrives = None;
                way.answered = Some(self.server.answer(way.ask, &way.lease));
            }
            if agent.gone || now < agent.frozen_until {
                continue;
            }
            let clock = agent.clock(now);
            if let Some(way) = agent.under_way.take_if(|way| way.returns <= now) {
                let answer = way.answered.filter(|_| !way.lost).unwrap_or(Answer::Failed);
                let chance = random.f64();
                agent
                    .election
                    .hear(way.ask, answer, way.sent, clock, scale, chance);
            }
            let (due, ask) = agent.election.next();
            if agent.under_way.is_none() && due <= clock {
                let mut travels = |from: Duration| {
                    let gets_lost = now < agent.cut_until || random.f64() < loss;
                    (!gets_lost).then(|| from + STEP * random.u32(0..=wire))
                };
                let arrives = travels(now);
                let returns = arrives.and_then(&mut travels);
                agent.under_way = Some(UnderWay {
                    ask,
                    lease: agent.election.wish(ask, None),
                    sent: clock,
                    arrives,
                    answered: None,
                    returns: returns.unwrap_or(now + limit),
                    lost: returns.is_none(),
                });
            }
        }
        let elected: Vec<usize> = self.elected().collect();
        assert!(elected.len() <= 1, "{elected:?} are elected at {now:?}");
    }

    fn elected(&self) -> impl Iterator<Item = usize> {
        let now = self.now;
        let is_elected = move |agent: &Agent| {
            !agent.gone && agent.election.elected_until(agent.clock(now)).is_some()
        };
        (0..self.agents.len()).filter(move |who| is_elected(&self.agents[*who]))
    }

    fn run_for(&mut self, seconds: u32) {
        for _ in 0..seconds * 10 {
            self.step();
        }
    }
}

fn fault() -> impl Strategy<Value = (u32, usize, Fault)> {
    let kind = prop_oneof![
        Just(Fault::Kill),
        Just(Fault::Stop),
        (10..400_u32).prop_map(Fault::Cut),
        (10..400_u32).prop_map(Fault::Freeze),
    ];
    (0..1400_u32, 0..100_usize, kind)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn never_are_two_elected_and_in_the_end_one_is(
        count in 1..12_usize,
        seed: u64,
        loss in 0.0..0.5,
        faults in proptest::collection::vec(fault(), 0..12),
    ) {
        let mut cluster = Simulation::of(count, seed);
        (cluster.loss, cluster.wire) = (loss, 20);
        for tenth in 0..1800 {
            for (_, who, fault) in faults.iter().filter(|(at, ..)| *at == tenth) {
                cluster.meets(who % count, fault);
            }
            cluster.step();
        }
        cluster.loss = 0.0;
        cluster.run_for(60);
        let alive = cluster.agents.iter().any(|agent| !agent.gone);
        for _ in 0..100 {
            prop_assert_eq!(cluster.elected().next().is_some(), alive);
            cluster.step();
        }
    }
}

/// The longest time in some clusters of this size until another agent is elected, after the elected one met this fault.
fn takeover(count: usize, fault: &Fault) -> f64 {
    let gap = |seed| {
        let mut cluster = Simulation::of(count, seed);
        cluster.run_for(100 + u32::try_from(seed).unwrap());
        let first = cluster.elected().next().unwrap();
        cluster.meets(first, fault);
        let at = cluster.now;
        while cluster.elected().next().is_none_or(|who| who == first) {
            cluster.step();
        }
        cluster.now.saturating_sub(at).as_secs_f64()
    };
    (0..4).map(gap).fold(0.0, f64::max)
}

#[test]
fn a_killed_agent_is_followed_within_thirty_seconds_at_every_size() {
    for count in [2, 3, 10, 100, 1000] {
        let seconds = takeover(count, &Fault::Kill);
        assert!(seconds < 30.0, "{count} agents: {seconds} s");
    }
}

#[test]
fn an_agent_that_stops_is_followed_within_five_seconds_at_every_size() {
    for count in [2, 3, 10, 100, 1000] {
        let seconds = takeover(count, &Fault::Stop);
        assert!(seconds < 5.0, "{count} agents: {seconds} s");
    }
}

#[test]
fn an_agent_that_is_cut_off_or_frozen_is_followed() {
    for fault in [Fault::Cut(600), Fault::Freeze(600)] {
        let seconds = takeover(3, &fault);
        assert!(seconds < 30.0, "{fault:?}: {seconds} s");
    }
}

#[test]
fn the_fleet_looks_at_the_lease_as_often_at_every_size() {
    for count in [10, 100, 1000] {
        let mut cluster = Simulation::of(count, 1);
        cluster.run_for(300);
        let before = cluster.server.looks;
        cluster.run_for(200);
        let each_second = f64::from(cluster.server.looks - before) / 200.0;
        assert!(
            (0.5..5.0).contains(&each_second),
            "{count} agents: {each_second} a second"
        );
    }
}
