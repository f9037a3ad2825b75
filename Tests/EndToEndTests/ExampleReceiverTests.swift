import Basics
import StoreTestSupport
import TestSupport
import Testing
import WebClient
import Webhooks

@Suite(
    "The receiver that the documents show",
    .timeLimit(.minutes(5)),
    .enabled(if: PythonProgram.isAvailable, PythonProgram.missing)
)
struct ExampleReceiverTests {
    private struct Event {
        let type: String
        let position: Int
        var scope = "app"
        var app = "com.example.one"
        /// Further members of the data, each after a comma.
        var members = ""

        func body(sub: String) -> String {
            """
            {"type":"siwa.\(type)","timestamp":"2026-11-23T10:11:12.345Z","data":{"version":1,"position":\(position),\
            "scope":"\(scope)","team_id":"AAAAAAAAAA","app_id":"\(app)","sub":"\(sub)"\(members),"notification":null}}
            """
        }
    }

    /// A person revokes the consent and gives it again, an operator ends two sessions, and mail stops and starts, as two apps
    /// of the team report. In another app the person revokes the consent at last.
    private static let events = [
        Event(type: "consent.authorized", position: 1),
        Event(type: "consent.revoked", position: 2, members: #","sessions":{"ended":1,"created_until":"T2"}"#),
        Event(type: "consent.authorized", position: 3),
        Event(type: "sessions.ended", position: 4, members: #","session_id":"s4","reason":"operator""#),
        Event(type: "sessions.ended", position: 5, members: #","session_id":"s5","reason":"operator""#),
        Event(type: "consent.authorized", position: 6, app: "com.example.two"),
        Event(
            type: "consent.revoked",
            position: 7,
            app: "com.example.two",
            members: #","sessions":{"ended":1,"created_until":null}"#
        ),
        Event(type: "email.forwarding_disabled", position: 8, scope: "team"),
        Event(type: "email.forwarding_enabled", position: 9, scope: "team", app: "com.example.two"),
    ]

    /// Runs a program, and prints the port of its server, which the system chooses.
    private static let announcing = """
        import http.server, runpy, sys

        class Server(http.server.HTTPServer):
            def server_activate(self):
                super().server_activate()
                print(self.server_port, flush=True)

        http.server.HTTPServer = Server
        runpy.run_path(sys.argv[1], run_name="__main__")
        """

    @Test("In whatever order the events arrive, every session ends, and the last state is the one in force.")
    func reordered() async throws {
        try await DaemonFixture.with { fixture in
            try await TemporaryDirectory.with { directory in
                let secret = try WebhookSecret.newHMAC()
                let receiver = fixture.start(
                    ["SECRET": secret.text, "PORT": "0", "DATABASE": directory.file("webhooks.db")],
                    arguments: [],
                    under: [PythonProgram.interpreter, "-c", Self.announcing, PythonProgram.exampleReceiver]
                )
                try await eventually("the receiver's port") { !receiver.output.isEmpty || receiver.status != nil }
                let port = try #require(receiver.output.first.flatMap { Int($0) }, "\(receiver.log)")
                let client = try EndpointClient(
                    EndpointURL(parsing: "http://127.0.0.1:\(port)/"),
                    concurrency: 1,
                    settings: .init(
                        policy: AddressPolicy(allowed: [AddressRange("127.0.0.0/8")].compactMap(\.self)),
                        version: "test"
                    ),
                    resolver: Resolver(),
                    eventLoopGroup: Web.eventLoops
                )
                let signer = WebhookSigner([.init(1, secret)])
                func send(_ event: Event, _ sub: String) async throws -> Int {
                    let body = Array(event.body(sub: sub).utf8)
                    let headers = try signer.headers(messageID: "msg_\(sub)_\(event.position)", at: .now(), body: body)
                    return try await client.post(body, headers: headers, timeout: .seconds(10)).status
                }
                var generator = SeededGenerator(seed: 25)
                for number in 0..<60 {
                    let order = Self.events.shuffled(using: &generator)
                    for event in order + order.prefix(2) { #expect(try await send(event, "p\(number)") == 204) }
                    // Its line comes last.
                    #expect(try await send(Self.events[0], "last\(number)") == 204)
                    try await eventually("the actions") {
                        receiver.output.contains("last\(number): siwa.consent.authorized")
                    }
                    let own = receiver.output.compactMap { line in
                        line.hasPrefix("p\(number): ") ? String(line.drop { $0 != " " }.dropFirst()) : nil
                    }
                    let positions = order.map(\.position)
                    #expect(own.filter { $0.hasPrefix("end ") }.sorted() == ["end T2", "end all", "end s4", "end s5"])
                    #expect(own.last { $0.hasPrefix("siwa.email") } == "siwa.email.forwarding_enabled", "\(positions)")
                    // Of both apps: authorized in one, and revoked in the other.
                    let revocations = own.count { $0 == "siwa.consent.revoked" }
                    let isSeenInOrder = positions.firstIndex(of: 2) ?? 0 < positions.firstIndex(of: 3) ?? 0
                    #expect(revocations == (isSeenInOrder ? 2 : 1), "\(positions)")
                }
                await client.close()
            }
        }
    }
}
