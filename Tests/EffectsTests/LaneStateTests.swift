import AccountStore
import Basics
import Testing

@testable import Effects

@Suite("The state of an endpoint's lane")
struct LaneStateTests {
    private let start = ContinuousClock.now
    private let time = WallTime(seconds: 1_790_000_000)
    private let budget = RequestBudget(100)

    private func lane(concurrency: Int = 8, rate: Double? = nil, _ stored: EndpointState = .init()) -> LaneState {
        var configuration = EndpointConfiguration(name: "app", url: "https://app.example/hook")
        configuration.concurrency = concurrency
        configuration.rate = rate
        let endpoint = Endpoint(id: 1, configuration: configuration, statusAt: time, createdAt: time)
        return LaneState(endpoint, stored, budget: budget, at: start, time)
    }

    /// Claims these, and sends as many as may be sent.
    private func send(_ positions: ClosedRange<Int64>, from lane: inout LaneState) -> [HeldDeliveries.Held] {
        let claim = lane.wantedClaim(at: start, time)
        lane.claimed(ClaimedDelivery.samples(positions), for: claim, since: start)
        var sent: [HeldDeliveries.Held] = []
        while let next = lane.next(at: start) { sent.append(next) }
        return sent
    }

    @discardableResult
    private func answered(
        _ held: HeldDeliveries.Held,
        _ outcome: AttemptOutcome,
        isInterrupted: Bool = false,
        at time: WallTime? = nil,
        in lane: inout LaneState
    ) -> SettledDelivery {
        let attempt = LaneState.Attempt(
            held: held,
            outcome: outcome,
            answer: .unanswered(.timedOut, "no answer"),
            startedAt: self.time,
            duration: .seconds(1),
            isInterrupted: isInterrupted
        )
        return lane.requestEnded(attempt, at: start, time ?? self.time, jitter: (0, 0))
    }

    private func positions(_ unstored: LaneState.Unstored) -> [Int64] { unstored.outcomes.map(\.position) }

    @Test("Requests from before the endpoint was changed count against its concurrency, also where a probe is due.")
    func earlierRequests() throws {
        var lane = lane(concurrency: 3)
        lane.counted(earlierRequests: 2)
        #expect(send(1...3, from: &lane).count == 1)
        #expect(lane.pause(at: start, time) <= .milliseconds(100))
        lane.counted(earlierRequests: 0)
        #expect(send(4...5, from: &lane).count == 2)

        var stored = EndpointState()
        (stored.failingSince, stored.openUntil, stored.probeDelay) = (time, time, .seconds(5))
        var open = self.lane(concurrency: 1, stored)
        open.counted(earlierRequests: 1)
        #expect(open.wantedClaim(at: start, time + .seconds(1)).capacity == 0)
        open.counted(earlierRequests: 0)
        #expect(open.wantedClaim(at: start, time + .seconds(1)).probe != nil)
    }

    @Test("What can't be stored is stored with the next statement, and the health with it.")
    func storingFails() throws {
        var lane = lane()
        for held in send(1...2, from: &lane) { answered(held, .delivered, in: &lane) }
        let first = lane.takeUnstored(at: start, time)
        #expect(positions(first) == [1, 2] && first.health?.lastSuccessAt == time)
        #expect(lane.takeUnstored(at: start, time).isEmpty)
        lane.storingFailed(first)
        #expect(lane.isUrgent)
        let second = lane.takeUnstored(at: start, time)
        #expect(positions(second) == [1, 2] && second.health?.lastSuccessAt == time)
        lane.stored(second)
        #expect(lane.takeUnstored(at: start + .seconds(2), time).isEmpty)
    }

    @Test("The health is stored once a second, and immediately with the first failure and when the circuit opens.")
    func health() throws {
        var lane = lane()
        let sent = send(1...8, from: &lane)
        #expect(sent.count == 8)
        answered(sent[0], .delivered, in: &lane)
        #expect(lane.takeUnstored(at: start, time).health != nil)
        answered(sent[1], .delivered, in: &lane)
        #expect(lane.takeUnstored(at: start + .milliseconds(999), time).health == nil)
        #expect(lane.takeUnstored(at: start + .seconds(1), time).health != nil)
        answered(sent[2], .failed(.timedOut), in: &lane)
        #expect(lane.takeUnstored(at: start + .seconds(1), time).health?.failingSince == time)
        for held in sent[3...6] { answered(held, .failed(.timedOut), in: &lane) }
        #expect(lane.circuit.isOpen && lane.isUrgent)
        #expect(lane.takeUnstored(at: start + .seconds(1), time).health?.openUntil != nil)
    }

    @Test("An outcome whose claim has ended is not stored, and makes room for further requests.")
    func lateOutcome() throws {
        var lane = lane(concurrency: 1)
        let held = try #require(send(1...1, from: &lane).first)
        answered(held, .delivered, in: &lane)
        #expect(lane.held.unsettled == 1)
        let late = start + .seconds(15) + DeliveryQueue.claimGrace
        #expect(positions(lane.takeUnstored(at: late, time)) == [])
        #expect(lane.held.unsettled == 0)
    }

    @Test("After 410 nothing is sent, what is claimed is given back, and the endpoint is disabled once.")
    func gone() throws {
        var lane = lane(concurrency: 1)
        let first = try #require(send(1...3, from: &lane).first)
        #expect(answered(first, .gone, in: &lane).outcome == .postponed)
        #expect(lane.next(at: start) == nil)
        let unstored = lane.takeUnstored(at: start, time)
        #expect(positions(unstored) == [1, 2, 3] && unstored.outcomes.allSatisfy { $0.outcome == .postponed })
        #expect(unstored.disabling == .gone)
        lane.storingFailed(unstored)
        let again = lane.takeUnstored(at: start, time)
        #expect(again.disabling == .gone)
        lane.stored(again)
        #expect(lane.takeUnstored(at: start, time).disabling == nil)
    }

    @Test("An endpoint that fails for longer than it may is disabled.")
    func failing() throws {
        var lane = lane()
        let sent = send(1...2, from: &lane)
        answered(sent[0], .failed(.timedOut), in: &lane)
        #expect(lane.takeUnstored(at: start, time).disabling == nil)
        let later = time + .seconds(5 * 86_400)
        answered(sent[1], .failed(.timedOut), at: later, in: &lane)
        #expect(lane.takeUnstored(at: start, later).disabling == .failing)
    }

    @Test("Once it has finished, what is claimed is given back as not attempted, and so is an interrupted request.")
    func finished() throws {
        var lane = lane(concurrency: 1)
        let first = try #require(send(1...2, from: &lane).first)
        lane.finished(at: start, within: .seconds(20))
        lane.finished(at: start + .seconds(1), within: .seconds(20))
        #expect(lane.deadline == start + .seconds(20))
        lane.finished(at: start + .seconds(2), within: .seconds(10))
        #expect(lane.deadline == start + .seconds(12))
        #expect(lane.next(at: start) == nil)
        let interrupted = answered(first, .failed(.timedOut), isInterrupted: true, in: &lane)
        #expect(interrupted.outcome == .postponed && interrupted.failure == nil)
        #expect(lane.takeUnstored(at: start, time).outcomes.map(\.failure) == [nil, nil])
        #expect(lane.circuit.lastFailedAt == nil)
    }

    @Test("A probe that finds nothing, or whose claim fails, is claimed another time.", arguments: [true, false])
    func probe(isFailure: Bool) throws {
        var stored = EndpointState()
        (stored.failingSince, stored.openUntil, stored.probeDelay) = (time, time, .seconds(5))
        var lane = lane(stored)
        let claim = lane.wantedClaim(at: start, time)
        #expect(claim.probe != nil && claim.capacity == 1)
        lane.claimed(isFailure ? nil : [], for: claim, since: start)
        #expect(lane.wantedClaim(at: start, time).probe != nil)
        #expect(lane.wantedClaim(at: start, time) == .nothing, "one probe at a time")
    }

    @Test("A probe that fails does not count as an attempt of its delivery, which stays as it is.")
    func probeFails() throws {
        var stored = EndpointState()
        (stored.failingSince, stored.openUntil, stored.probeDelay) = (time, time, .seconds(5))
        var lane = lane(stored)
        let probe = try #require(send(1...1, from: &lane).first)
        #expect(answered(probe, .failed(.timedOut), in: &lane).outcome == .postponed)
        #expect(lane.next(at: start) == nil && lane.wantedClaim(at: start, time) == .nothing)
    }

    @Test("What was before an operator resumed it does not count.")
    func resumed() throws {
        var stored = EndpointState()
        (stored.failingSince, stored.openUntil, stored.probeDelay) = (time + .seconds(-9), time, .seconds(5))
        var lane = lane(stored)
        #expect(!lane.circuit.isOpen)
        #expect(lane.takeUnstored(at: start, time).health?.failingSince == nil)
    }

    @Test("The cause of a failure is stored once, so that it does not replace the later one of another daemon.")
    func cause() throws {
        var stored = EndpointState()
        (stored.lastReason, stored.lastDetail) = ("tls", "an older one")
        var lane = lane(stored)
        let sent = send(1...2, from: &lane)
        answered(sent[0], .failed(.timedOut), in: &lane)
        let first = lane.takeUnstored(at: start, time)
        #expect(first.health?.lastReason == "timed-out")
        lane.storingFailed(first)
        let second = lane.takeUnstored(at: start, time)
        #expect(second.health?.lastReason == "timed-out" && second.health?.lastDetail == "no answer")
        lane.stored(second)
        answered(sent[1], .delivered, in: &lane)
        let third = try #require(lane.takeUnstored(at: start + .seconds(1), time).health)
        #expect(third.lastReason == nil && third.lastDetail == nil && third.lastSuccessAt == time)
    }

    @Test("One request needs no budget; the others return theirs as they end.")
    func requestBudget() throws {
        let all = budget.take(upTo: 100)
        var lane = lane()
        #expect(lane.wantedClaim(at: start, time).capacity == 1)
        budget.giveBack(all)
        let sent = send(1...8, from: &lane)
        #expect(sent.count == 8 && budget.take(upTo: 100) == 93)
        budget.giveBack(93)
        for held in sent { answered(held, .delivered, in: &lane) }
        lane.stored(lane.takeUnstored(at: start, time))
        lane.claimed([], for: .nothing, since: start)
        #expect(budget.take(upTo: 200) == 100)
        budget.giveBack(100)
        let last = send(9...12, from: &lane)
        // A lane that has finished keeps only what its requests under way need.
        for held in last.dropFirst() { answered(held, .delivered, in: &lane) }
        lane.finished(at: start, within: .seconds(65))
        lane.stored(lane.takeUnstored(at: start, time))
        #expect(budget.take(upTo: 200) == 100)
        budget.giveBack(100)
        lane.closed()
        #expect(budget.take(upTo: 200) == 100)
    }

    @Test("A probe that was claimed while the lane finished is given back.")
    func lateProbe() {
        var stored = EndpointState()
        (stored.failingSince, stored.openUntil, stored.probeDelay) = (time, time, .seconds(5))
        var lane = lane(stored)
        let claim = lane.wantedClaim(at: start, time + .seconds(1))
        #expect(claim.probe != nil)
        lane.finished(at: start, within: .seconds(10))
        lane.claimed(ClaimedDelivery.samples(1...1), for: claim, since: start)
        #expect(lane.next(at: start) == nil)
        #expect(lane.takeUnstored(at: start, time).outcomes.map(\.outcome) == [.postponed])
    }

    @Test(
        "Of what is sent, a quarter are retries, also if each claim takes one delivery; without fresh ones, all are.",
        arguments: [(8, 2), (1, nil)] as [(Int, Double?)]
    )
    func retryShare(concurrency: Int, rate: Double?) {
        for hasFresh in [true, false] {
            var lane = lane(concurrency: concurrency, rate: rate)
            var (now, position) = (start, Int64(0))
            var areRetries: [Bool] = []
            while areRetries.count < 8, now < start + .seconds(60) {
                let claim = lane.wantedClaim(at: now, time)
                var claimed: [ClaimedDelivery] = []
                // As PostgreSQL does it: retries first.
                while claimed.count < (hasFresh ? claim.capacity : claim.retries) {
                    position += 1
                    let isRetry = claimed.count < claim.retries
                    claimed += ClaimedDelivery.samples(position...position, isRetry: isRetry)
                }
                lane.claimed(claimed, for: claim, since: now)
                while let held = lane.next(at: now) {
                    areRetries.append(held.delivery.isRetry)
                    answered(held, .delivered, in: &lane)
                }
                lane.stored(lane.takeUnstored(at: now, time))
                now += lane.pause(at: now, time)
            }
            #expect(areRetries.count(where: { $0 }) == (hasFresh ? 2 : 8))
            // A claim that finds too few fresh ones is followed by the next one, without a pause.
            #expect(now < start + .seconds(9))
        }
    }

    @Test("It pauses until its next retry, its next probe or the next request that its rate allows.")
    func pause() throws {
        var retrying = lane()
        #expect(retrying.pause(at: start, time) == .seconds(1))
        let held = try #require(send(1...1, from: &retrying).first)
        #expect(answered(held, .failed(.timedOut), in: &retrying).outcome == .retry(after: .seconds(5)))
        let due = start + .seconds(5) + .milliseconds(20)
        #expect(retrying.pause(at: due - .milliseconds(300), time) == .milliseconds(300))
        _ = retrying.wantedClaim(at: due, time)
        #expect(retrying.pause(at: due, time) == .seconds(1))

        var stored = EndpointState()
        (stored.failingSince, stored.openUntil, stored.probeDelay) = (time, time + .milliseconds(400), .seconds(5))
        #expect(lane(stored).pause(at: start, time) == .milliseconds(400))

        // What an open circuit leaves of the rate does not change.
        (stored.openUntil, stored.failingSince) = (time, time)
        var open = lane(rate: 2, stored)
        let probe = open.wantedClaim(at: start, time)
        open.claimed(ClaimedDelivery.samples(1...1), for: probe, since: start)
        #expect(open.pause(at: start, time) == .seconds(1))

        var limited = lane(rate: 2)
        #expect(limited.wantedClaim(at: start, time).capacity == 1)
        limited.claimed(ClaimedDelivery.samples(1...1), for: limited.wantedClaim(at: start, time), since: start)
        #expect(limited.pause(at: start, time) == .milliseconds(500))
    }
}
