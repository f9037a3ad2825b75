import AccountStore
import AppleTokens
import Basics
import Effects
import Terminal
import Testing

@Suite("Events of changes")
struct ChangeEventTests {
    private func change(
        _ type: String,
        position: Int64 = 4711,
        scope: String = "app",
        facet: String = "consent",
        from: String = "authorized",
        to: String = "revoked",
        notification: String? = "fWbjA",
        session: String? = nil,
        id: Int64 = 9
    ) -> PublishedChange {
        PublishedChange(
            position: position,
            publishedAt: WallTime(microseconds: 1_795_428_680_131_999),
            type: type,
            scope: scope,
            team: TeamID("A1B2C3D4E5"),
            subject: Subject("000768.6166f031167141e695698239959f591a.1521"),
            app: AppID("com.example.app"),
            facet: facet,
            fromState: from,
            toState: to,
            eventTime: WallTime(milliseconds: 1_795_428_672_345),
            recordedAt: WallTime(microseconds: 1_795_428_680_100_500),
            notificationID: notification,
            sessionsEnded: 2,
            sessionID: session,
            accountID: 1,
            changeID: id
        )
    }

    private func data(_ change: PublishedChange) -> String {
        let line = ChangeEvent(change).envelope.line
        return String(line[(line.firstRange(of: #""from""#)?.lowerBound ?? line.startIndex)...])
    }

    @Test("The members have their order, times have milliseconds, and there is no insignificant white space.")
    func form() {
        let change = change("siwa.consent.revoked")
        let event = ChangeEvent(change)
        #expect(
            event.envelope.line == """
                {"id":"\(event.id)","published_at":"2026-11-23T10:11:20.131Z","type":"siwa.consent.revoked",\
                "timestamp":"2026-11-23T10:11:12.345Z","data":{"version":1,"position":4711,"scope":"app",\
                "team_id":"A1B2C3D4E5","app_id":"com.example.app","sub":"000768.6166f031167141e695698239959f591a.1521",\
                "from":"authorized","to":"revoked","recorded_at":"2026-11-23T10:11:20.100Z",\
                "sessions":{"ended":2,"created_until":"2026-11-23T10:11:12.345Z"},"notification":"fWbjA"}}
                """
        )
        #expect(event.envelope.line.utf8.count < 1_024)
    }

    @Test("Each type has the further data of the catalogue.")
    func types() {
        let recorded = #""recorded_at":"2026-11-23T10:11:20.100Z","#
        let until = #""sessions":{"ended":2,"created_until":"2026-11-23T10:11:12.345Z"},"#
        #expect(
            data(change("siwa.sessions.ended", to: "authorized"))
                == #""from":"authorized","to":"authorized",\#(recorded)\#(until)"reason":"consent-revoked","notification":"fWbjA"}}"#
        )
        let ended = change(
            "siwa.sessions.ended",
            facet: "session",
            from: "live",
            to: "ended",
            notification: nil,
            session: "s"
        )
        #expect(
            data(ended)
                == #""from":"live","to":"ended",\#(recorded)"session_id":"s","reason":"operator","notification":null}}"#
        )
        let deleted = change("siwa.account.deleted", scope: "team", facet: "account", from: "active", to: "deleted")
        #expect(
            data(deleted)
                == #""from":"active","to":"deleted",\#(recorded)"sessions":{"ended":2,"created_until":null},"notification":"fWbjA"}}"#
        )
        let authorized = change("siwa.consent.authorized", from: "revoked", to: "authorized", notification: nil)
        #expect(data(authorized) == #""from":"revoked","to":"authorized",\#(recorded)"notification":null}}"#)
    }

    @Test("Only events about addresses contain the address, and only if it is given.")
    func email() {
        for (type, state) in [("disabled", "undeliverable"), ("enabled", "deliverable")] {
            let change = change("siwa.email.forwarding_\(type)", scope: "team", facet: "email", from: "any", to: state)
            let shown = ChangeEvent(change, email: "a@b.example")
            #expect(shown.envelope.line.hasSuffix(#""email":"a@b.example","notification":"fWbjA"}}"#))
            #expect(shown.id == ChangeEvent(change).id)
            #expect(!data(change).contains("email\":"))
        }
        let others = [
            change("siwa.consent.revoked"), change("siwa.consent.authorized", to: "authorized"),
            change("siwa.sessions.ended"), change("siwa.sessions.ended", facet: "session", session: "s"),
            change("siwa.account.deleted", scope: "team", facet: "account"),
        ]
        for change in others { #expect(!ChangeEvent(change, email: "a@b.example").envelope.line.contains("a@b")) }
    }

    @Test("The id depends on the change, and on neither its position nor the time of its publication.")
    func id() {
        let id = ChangeEvent(change("siwa.consent.revoked")).id
        #expect(id.wholeMatch(of: /msg_[0-9a-f]{32}/) != nil)
        #expect(ChangeEvent(change("siwa.consent.revoked", position: 1)).id == id)
        let others = [
            change("siwa.consent.revoked", id: 10), change("siwa.consent.revoked", from: "unknown"),
            change("siwa.consent.revoked", notification: nil), change("siwa.consent.revoked", facet: "email"),
        ]
        #expect(Set(others.map { ChangeEvent($0).id } + [id]).count == 5)
    }
}
