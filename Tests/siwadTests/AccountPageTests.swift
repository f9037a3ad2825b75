import AppleTokens
import Basics
import Terminal
import Testing

@testable import AccountStore
@testable import siwad

private func time(_ text: String) -> WallTime {
    WallTime(iso8601: text) ?? WallTime(microseconds: 0)
}

private let person = Subject("000768.6166f031167141e695698239959f591a.1521")
private let team = TeamID("A1B2C3D4E5")
private let app = AppID("com.example.quite.long.application")
private let signedIn = time("2026-01-02T03:04:05Z")
private let revoked = time("2026-02-03T04:05:06Z")
private let id = "H20GBS4ytjusfHJsbmBE6A"

/// The page of a person with a session that ended.
private func page(
    _ state: String = "revoked",
    deletedAt: WallTime? = nil,
    erasedAt: WallTime? = nil,
    source: String = "endpoint",
    live: Int = 0,
    endReason: String? = "consent-revoked",
    limit: Int = 10
) -> AccountPage {
    let isRevoked = state == "revoked"
    let telling = AccountRegister.Notification(id: id, source: source, receivedAt: revoked + .seconds(10))
    let registers = [
        AccountRegister(name: .authorized, app: app, time: signedIn, source: .application),
        AccountRegister(name: .revoked, app: app, time: revoked, source: .notification(telling)),
        deletedAt.map { AccountRegister(name: .deleted, app: nil, time: $0, source: .dropped(id: id)) },
    ]
    let session = AccountSession(
        id: "a3f1c5d",
        team: team,
        subject: person,
        app: app,
        createdAt: signedIn,
        signedInAt: signedIn,
        expiresAt: endReason == nil ? revoked : nil,
        endedAt: endReason == nil ? nil : revoked,
        endReason: endReason,
        isLive: false
    )
    return AccountPage(
        registers: AccountRegisters(
            team: team,
            subject: person,
            firstHeardAt: signedIn,
            deletedAt: deletedAt,
            forwardingDisabledAt: time("2026-01-03T00:00:00Z"),
            forwardingEnabledAt: nil,
            email: erasedAt == nil ? "k7x2m9@privaterelay.appleid.com" : nil,
            emailIsPrivate: erasedAt == nil ? true : nil,
            emailObservedAt: erasedAt == nil ? time("2026-01-03T00:00:00Z") : nil,
            erasedAt: erasedAt
        ),
        registersWithSources: registers.compactMap(\.self).filter { isRevoked || $0.name != .revoked },
        states: [
            AccountState(
                team: team,
                subject: person,
                app: app,
                state: state,
                authorizedAt: signedIn,
                revokedAt: isRevoked ? revoked : nil,
                deletedAt: deletedAt,
                email: nil,
                emailIsPrivate: nil,
                emailIsDeliverable: false
            )
        ],
        sessionCounts: [app: SessionCount(all: 2, live: live)],
        sessions: [session],
        lastEnded: [session],
        history: ["authorized", "revoked"].map { former in
            AccountChange(
                team: team,
                subject: person,
                app: app,
                facet: "consent",
                fromState: former,
                toState: "revoked",
                eventTime: revoked,
                recordedAt: revoked + .seconds(10),
                notificationID: id,
                sessionsEnded: 2
            )
        },
        letters: [],
        limit: limit
    )
}

extension AccountPage: CustomTestStringConvertible {
    var testDescription: String { "\(states.map(\.state)), \(sessions.map(\.endReason))" }
}

@Suite("Account page")
struct AccountPageTests {
    @Test("The page shows everything, the answer first.")
    func whole() {
        let expected = """
            000768.6166f031167141e695698239959f591a.1521 in team A1B2C3D4E5
              com.example.quite.long.application: signed out, because consent was revoked on
              2026-02-03 04:05:06 UTC, reported by notification H20GBS4ytjusfHJsbmBE6A.

              heard of  first on 2026-01-02 03:04:05 UTC
              address   k7x2m9@privaterelay.appleid.com (private relay, seen 2026-01-03
                        00:00:00 UTC)
              mail      undeliverable: forwarding off since 2026-01-03 00:00:00 UTC
            """
        let lines = page().lines(style: OutputStyle(width: 80, usesColor: false))
        #expect(lines.prefix(8).joined(separator: "\n") == expected)
        for line in lines { #expect(VisibleText.width(line) <= 80, "\(line)") }
        for title in ["STATES", "SET BY", "SESSIONS: 0 live of 2", "HISTORY"] { #expect(lines.contains(title)) }
        #expect(!lines.contains("OPEN DEAD LETTERS"))
    }

    @Test("The title of a list that the limit may have cut says so.")
    func cut() {
        #expect(page(limit: 2).lines(style: .plain).contains("HISTORY: the latest 2"))
        #expect(page(limit: 3).lines(style: .plain).contains("HISTORY"))
    }

    @Test("The page names the sign-in or notification that set each fact, and its source.")
    func sources() {
        let lines = page(source: "spool").lines(style: .plain)
        #expect(
            lines.contains(
                "  revoked    com.example.quite.long.application  2026-02-03 04:05:06  H20GBS4ytjusfHJsbmBE6A  spool  "
                    + "2026-02-03 04:05"
            )
        )
        #expect(lines.contains { $0.hasPrefix("  signed in  ") && $0.contains("  sign-in  ") })
    }

    @Test(
        "The summary says whether the person is signed in, and why not.",
        arguments: [
            (
                page(),
                "signed out, because consent was revoked on 2026-02-03 04:05:06 UTC, reported by notification \(id)."
            ),
            (page(source: "replay"), "reported by notification \(id) when it was replayed."),
            (page(live: 1), "1 session opened since then is live, though the application reported no sign-in."),
            (
                page("authorized", live: 2),
                "signed in, 2 live sessions. Consent is in force since 2026-01-02 03:04:05 UTC."
            ),
            (
                page("authorized", endReason: "signed-out"),
                "no session is live; the last one ended on 2026-02-03 04:05:06 UTC, when the application signed it out."
            ),
            (page("authorized", endReason: "operator"), "when an operator ended it."),
            (
                page("authorized", endReason: nil),
                "no session is live; the last one ended on 2026-02-03 04:05:06 UTC, when it expired."
            ),
            (page("unknown"), "never signed in"),
            (
                page("deleted", deletedAt: revoked),
                "Signed out everywhere and for good: the Apple Account was deleted on 2026-02-03 04:05:06 UTC, reported by "
                    + "notification \(id)."
            ),
        ]
    )
    func summary(_ page: AccountPage, _ answer: String) {
        let sentences = page.summary
        #expect(sentences.count == 1)
        #expect(sentences.first?.contains(answer) == true, "\(sentences)")
    }

    @Test("The page of an erased account says that its data were erased.")
    func erased() {
        let page = page("deleted", deletedAt: signedIn, erasedAt: revoked)
        let lines = page.lines(style: .plain)
        #expect(lines.contains { $0.hasPrefix("  The address and the tokens were erased on 2026-02-03 04:05:06 UTC") })
        #expect(lines.contains("  address   erased"))
        #expect(page.json[0].line.contains(#""email_observed_at":null,"erased_at":"2026-02-03T04:05:06.000Z""#))
    }

    @Test("The JSON object has the names of the database.")
    func json() {
        let line = page().json[0].line
        #expect(
            line.contains(
                #"{"register":"revoked_at","app_id":"com.example.quite.long.application","#
                    + #""time":"2026-02-03T04:05:06.000Z","told_by":"notification","jti":"H20GBS4ytjusfHJsbmBE6A","#
                    + #""source":"endpoint","received_at":"2026-02-03T04:05:16.000Z"}"#
            )
        )
        #expect(line.contains(#""sessions_live":0,"sessions_total":2,"sessions":[{"#))
        #expect(line.hasSuffix(#""dead_letters":[]}"#))
    }
}
