import AccountStore
import AppleSimulator
import FoundationEssentials
import JOSE
import TestSupport
import Testing
import Webhooks

@Suite("Secrets of endpoints in output", .timeLimit(.minutes(10)))
struct DeliverySecretTests {
    private static let query = "token=hidden-in-the-query"
    private static let answer = "body-of-the-receiver"
    private static let address = "someone.private@example.com"

    private let commands = [
        "endpoints list", "endpoints list --json", "endpoints show shop", "endpoints show shop --json",
        "endpoints show closed --json", "endpoints test shop", "endpoints test closed", "endpoints test secretive",
        "endpoints edit shop --timeout 9s --note why", "endpoints pause secretive --note why",
        "endpoints edit closed --url ftp://a.example/?\(query) --note why",
        "endpoints rotate shop --note why", "endpoints resume secretive --note why",
        "deliveries list --status any --wide", "deliveries list --status any --json",
        "deliveries show closed/2 --json", "deliveries show shop/2", "deliveries stats --by reason",
        "deliveries retry --endpoint closed --note why", "changes show 2", "changes show 2 --json",
        "changes list --json", "changes follow --from-start --until-current --json", "audit list --wide",
        "audit list --json", "config", "config --json", "config --markdown", "doctor", "doctor --json",
        "sealing status", "migrate status",
    ]

    @Test(
        "No log, metric, output, error, dump or list of processes contains a secret, a receiver's answer or a URL's query."
    )
    func nowhere() async throws {
        let settings = try DaemonFixture.delivering(["SIWAD_LOG_LEVEL": "trace", "SIWAD_DELIVERY_RETENTION": "1d"])
        let key = try #require(settings["SIWAD_SEALING_KEYS"]?.split(separator: ":").last.map(String.init))
        let secret = String(try DaemonFixture.secret.text.dropFirst("whsec_".count))
        let head = "HTTP/1.1 500 Oops \(Self.answer)\r\nX-Body: \(Self.answer)\r\nContent-Length: 20\r\n\r\n"
        let reply = head + Self.answer
        try await DaemonFixture.withDaemon(settings) { fixture, daemon, addresses in
            var texts: [(place: String, text: String)] = []
            try await WebhookReceiver.with(try DaemonFixture.secret) { receiver in
                try await WebhookReceiver.with(
                    try DaemonFixture.secret,
                    answering: { _, _ in .bytes(reply) }
                ) { secretive in
                    let urls = [
                        "shop": receiver.url, "secretive": secretive.url, "closed": "http://127.0.0.1:1/",
                        "tls": receiver.url.replacing("http:", with: "https:"), "blocked": "https://10.0.0.1/",
                        "unknown": "https://nowhere.invalid/",
                    ]
                    for (name, url) in urls {
                        try await fixture.addEndpoint(name, "\(url)?\(Self.query)") {
                            $0.types = nil
                            $0.include = ["email"]
                        }
                    }
                    for event in ["email-disabled", "consent-revoked"] {
                        var event = fixture.event(event)
                        event.email = Self.address
                        #expect(try await Web.post(fixture.body(event), to: addresses.notifications).status == 200)
                    }
                    let waiting = "SELECT position::text FROM siwa.deliveries WHERE next_attempt_at IS NOT NULL"
                    try await eventually("all outcomes") { try await fixture.texts(waiting).isEmpty }
                    #expect(receiver.messages.allSatisfy { $0.head.contains(Self.query) })
                    let process = try #require(daemon.processID)
                    let arguments = try String(contentsOfFile: "/proc/\(process)/cmdline", encoding: .utf8)
                    #expect(arguments.contains("serve"))
                    texts.append(("the arguments", arguments))
                    // Of the daemon, whose connections keep the text of their last statement.
                    let activity = try await fixture.texts(
                        """
                        SELECT application_name || ' ' || query FROM pg_stat_activity
                        WHERE datname = current_database() AND pid <> pg_backend_pid()
                        """
                    )
                    #expect(activity.contains { $0.hasPrefix("siwad ") })
                    texts.append(("pg_stat_activity", activity.joined(separator: "\n")))
                    for command in commands {
                        let words = command.split(separator: " ").map(String.init)
                        let run = try await siwad(words, environment: fixture.environment(settings))
                        #expect(run.status != 70, "\(command): \(run.errors)")
                        texts.append((command, run.output + run.errors))
                    }
                }
            }
            for path in ["/metrics", "/readyz?verbose"] {
                texts.append((path, try await Web.get(addresses.operations + path).body))
            }
            daemon.send("TERM")
            #expect(try await daemon.end() == 0)
            texts.append(("log", daemon.log.joined(separator: "\n")))
            #expect(daemon.log.count > 5)
            let dump = try await dump(fixture)
            // The URL with its query is a column of one table.
            let rows = dump.split(separator: "\n").filter { $0.contains(Self.query) }
            #expect(rows.count == 6 && rows.allSatisfy { $0.contains("\twebhook\t") }, "\(rows)")
            for (place, text) in texts {
                #expect(!text.contains(Self.query), "the query in \(place)")
                #expect(!text.contains(Self.address), "the address in \(place)")
            }
            for (place, text) in texts + [("dump", dump)] {
                #expect(!text.contains(Self.answer), "the answer in \(place)")
                for hidden in [secret, key, "whsec_", "whsk_"] {
                    #expect(!text.contains(hidden), "a secret in \(place)")
                }
            }
        }
    }

    private func dump(_ fixture: DaemonFixture) async throws -> String {
        let dump = DaemonProcess(
            [],
            environment: ["SOURCE": fixture.conninfo],
            under: ["/bin/bash", "-c", "pg_dump --no-privileges --schema siwa \"$SOURCE\""]
        )
        #expect(try await dump.end() == 0, "\(dump.log)")
        return dump.output.joined(separator: "\n")
    }
}
