import AppleTokens
import AppleSimulator
import StoreTestSupport
import Testing

@testable import Ingest

@Suite("A change of the policy")
struct PolicyTests {
    @Test("Receivers that are in use apply it to the next request.")
    func replaced() async throws {
        try await IngestFixture.with { fixture in
            await fixture.untilStoring()
            let app = "com.example.late"
            #expect(await fixture.client.answer(try fixture.body(app: app)) == .acknowledged)
            let audiences = try AudienceMap(parsing: "AAAAAAAAAA/com.example.one,AAAAAAAAAA/\(app)")
            fixture.service.replace(policy: NotificationPolicy(audiences: audiences))
            #expect(await fixture.client.answer(try fixture.body(app: app, id: "late")) == .acknowledged)
            #expect(try await fixture.texts("SELECT reason FROM siwa.dead_letters") == ["unknown-audience"])
            #expect(try await fixture.texts("SELECT jti FROM siwa.notifications") == ["late"])
        }
    }
}
