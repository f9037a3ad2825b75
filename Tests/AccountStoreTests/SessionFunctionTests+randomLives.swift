import AccountStore
import AppleTokens
import Basics
import Postgres
import StoreTestSupport
import TestSupport
import Testing

/// Random orders of events, compared with a model.
extension SessionFunctionTests {
    /// The events of a person in one app group, in minutes. Actions of the application happen now.
    private struct Life {
        var signIns: [Int] = []
        var revocations: [Int] = []
        /// The minute of the sign-in that each session rests on; nil after the session was ended or expired.
        var sessions: [String: Int?] = [:]

        func isLive(_ id: String) -> Bool {
            guard let signIn = sessions[id] ?? nil else { return false }
            return revocations.allSatisfy { $0 < signIn }
        }
    }

    @Test("In any order of sign-ins, openings, rotations and revocations, live sessions rest on a later sign-in.")
    func randomLives() async throws {
        try await Store.with { store in
            for seed in 0..<60 {
                var generator = SeededGenerator(seed: UInt64(seed))
                var life = Life()
                let person = "p\(seed)"
                for step in 0..<14 {
                    let minute = Int.random(in: 0..<6, using: &generator)
                    let fresh = "\(seed).\(step)"
                    let known = life.sessions.keys.sorted().randomElement(using: &generator)
                    switch Int.random(in: 0..<10, using: &generator) {
                    case 0, 1:
                        try await store.signIn(person, at: .at(60 * minute))
                        life.signIns.append(minute)
                    case 2, 3:
                        try await store.record(
                            .sample("consent-revoked", sub: person, at: .at(60 * minute), id: fresh)
                        )
                        life.revocations.append(minute)
                    case 4, 5:
                        guard let last = life.signIns.max() else { continue }
                        let isLate = Bool.random(using: &generator)
                        life.sessions[fresh] = isLate ? min(minute, last) : last
                        let live = try await store.openSession(
                            fresh,
                            of: person,
                            at: isLate ? .at(60 * minute) : .at(3_600)
                        )
                        #expect(live == life.isLive(fresh), "seed \(seed), step \(step)")
                    case 6, 7:
                        guard let known else { continue }
                        let live = try await holds("rotate_session('\(known)', '\(fresh)')", in: store)
                        #expect(live == life.isLive(known), "seed \(seed), step \(step)")
                        if live {
                            life.sessions[fresh] = life.sessions[known]
                            life.sessions[known] = .some(nil)
                        }
                    case 8:
                        guard let known else { continue }
                        try await store.run(
                            """
                            UPDATE siwa.account_sessions
                            SET created_at = now() - interval '1 d', signed_in_at = least(signed_in_at, now() - interval '1 d'),
                                expires_at = now() - interval '1 s'
                            WHERE session_id = '\(known)' AND closed_at IS NULL
                            """
                        )
                        life.sessions[known] = .some(nil)
                    default:
                        guard let known else { continue }
                        let ended = try await holds("end_session('\(known)')", in: store)
                        #expect(ended == life.isLive(known), "seed \(seed), step \(step)")
                        life.sessions[known] = .some(nil)
                    }
                    let live = try await store.texts(
                        "SELECT session_id FROM siwa.live_sessions WHERE sub = '\(person)' ORDER BY session_id COLLATE \"C\""
                    )
                    #expect(live == life.sessions.keys.filter(life.isLive).sorted(), "seed \(seed), step \(step)")
                    let asked = try await store.texts(
                        """
                        SELECT session_id FROM siwa.account_sessions WHERE session_id LIKE '\(seed).%' AND
                            siwa.session_is_live(session_id) ORDER BY session_id COLLATE "C"
                        """
                    )
                    #expect(asked == live, "seed \(seed), step \(step): the function and the view differ")
                }
            }
        }
    }
}
