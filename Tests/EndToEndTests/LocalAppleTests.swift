import AppleSimulator
import Basics
import Glibc
import JOSE
import TestSupport
import Testing
import WebClient

@Suite("A local Apple for sign-in", .timeLimit(.minutes(10)))
struct LocalAppleTests {
    private static let client = "com.example.one"

    /// Runs `siwad simulate apple` while `body` runs.
    private func withApple(
        _ arguments: [String] = [],
        key: SimulatedApple? = nil,
        _ body: (_ url: String) async throws -> Void
    ) async throws {
        try await TemporaryDirectory.with { directory in
            let apple = try key ?? SimulatedApple.generate()
            let file = try directory.write("key.pem", try apple.key.pem())
            let all = ["simulate", "apple", "--key", file, "--listen", "127.0.0.1:0"] + arguments
            let process = DaemonProcess(all, environment: [:])
            do {
                try await eventually("the simulated Apple") { !process.output.isEmpty }
                let url = try #require(process.output.first?.split(separator: " ").first)
                try await body(String(url))
            } catch {
                process.send("INT")
                _ = try? await process.end()
                throw error
            }
            process.send("INT")
            #expect(try await process.end() == 0)
            #expect(process.log.isEmpty, "\(process.log)")
        }
    }

    /// The simulated Apple checks the form of the signature only.
    private static func secret(_ client: String = client) -> String {
        let now = WallTime.now().wholeSeconds
        let claims =
            #"{"iss":"AAAAAAAAAA","iat":\#(now),"exp":\#(now + 300),"aud":"https://appleid.apple.com","sub":"#
            + #""\#(client)"}"#
        return [
            Array(#"{"alg":"ES256","kid":"KEY4567890"}"#.utf8), Array(claims.utf8), [UInt8](repeating: 1, count: 64),
        ]
        .map(Base64URL.encode).joined(separator: ".")
    }

    private func control(_ url: String, _ name: String, _ body: String = "") async throws -> JSONValue {
        let response = try await Web.post(body, to: "\(url)/simulator/\(name)")
        #expect(response.status == 200, "\(response.body)")
        return try JSONValue(parsing: Array(response.body.utf8))
    }

    private func code(_ url: String, _ members: String = "") async throws -> String {
        let answer = try await control(url, "sign-in", #"{"client_id":"\#(Self.client)"\#(members)}"#)
        return try #require(answer["authorizationCode"]?.string)
    }

    private func send(
        _ url: String,
        _ grant: TokenGrant,
        budget: Duration = .seconds(6)
    ) async throws -> TokenAnswer {
        try await TokenEndpointClient.with(
            url: try AppleURL(parsing: url),
            version: "0",
            eventLoopGroup: Web.eventLoops
        ) { await $0.send(grant, budget: budget).answer }
    }

    private func trade(
        _ url: String,
        _ code: String,
        redirectURI: String? = nil,
        budget: Duration = .seconds(6)
    ) async throws -> TokenAnswer {
        let grant = TokenGrant.code(
            code,
            redirectURI: redirectURI,
            clientID: Self.client,
            clientSecret: Self.secret()
        )
        return try await send(url, grant, budget: budget)
    }

    // MARK: - The wire

    @Test("Responses have Apple's header fields and bodies.")
    func wire() async throws {
        let apple = try SimulatedApple.generate()
        try await withApple(key: apple) { url in
            let keys = try await Web.get("\(url)/auth/keys")
            let published = try JSONWebKeySet(parsing: Array(keys.body.utf8)).keys.map(\.keyID)
            #expect(published.count == 3 && published.firstIndex { $0 == apple.keyID } ?? 0 > 0)
            #expect(keys.fields["cache-control"] == "no-store")
            let form =
                try await "grant_type=authorization_code&client_id=\(Self.client)&client_secret=\(Self.secret())&code="
                + code(url)
            let type = "application/x-www-form-urlencoded"
            let first = try await Web.post(form, to: "\(url)/auth/token", type: type)
            #expect(first.status == 200)
            let again = try await Web.post(form, to: "\(url)/auth/token", type: type)
            #expect(again.status == 400)
            #expect(again.body == #"{"error":"invalid_grant","error_description":"The code has already been used."}"#)
            for response in [first, again] {
                #expect(response.fields["content-type"] == "application/json;charset=ISO-8859-1")
                #expect(response.fields["cache-control"] == "no-store")
                #expect(response.fields["server"] == "Apple")
            }
            let secret = "client_id=\(Self.client)&client_secret=\(Self.secret())"
            let revoked = try await Web.post("\(secret)&token=garbage", to: "\(url)/auth/revoke", type: type)
            #expect(revoked.status == 200 && revoked.body.isEmpty)
            let asJSON = try await Web.post("{}", to: "\(url)/auth/token")
            #expect(asJSON.body == #"{"error":"invalid_request"}"#)
            #expect(try await Web.get("\(url)/auth/authorize").status == 404)
            for path in ["/simulator/none", "/other/token", "/auth/token/", "/auth/keys"] {
                #expect(try await Web.post(form, to: url + path, type: type).status == 404, "\(path)")
            }
            let long = String(repeating: "x", count: 70_000)
            #expect(try await Web.post(long, to: "\(url)/auth/token").status == 413)
            #expect(try await Web.post("x", to: "\(url)/simulator/sign-in").status == 400)
        }
    }

    // MARK: - The client of the token endpoint

    @Test("A code is traded for tokens that fit, and the refresh token is valid until the person stops using the app.")
    func exchange() async throws {
        try await withApple { url in
            let device = try await control(url, "sign-in", #"{"client_id":"\#(Self.client)"}"#)
            let subject = try #require(device["sub"]?.string)
            let answer = try await trade(url, try #require(device["authorizationCode"]?.string))
            guard case .issued(let tokens) = answer else {
                Issue.record("\(answer)")
                return
            }
            let claims = try claims(tokens)
            let hash = claims["at_hash"]?.string
            #expect(tokens.matches(subject: subject, accessTokenHash: hash, presentedSubject: claims["sub"]?.string))
            let refresh = TokenGrant.refresh(
                try #require(tokens.refreshToken),
                clientID: Self.client,
                clientSecret: Self.secret()
            )
            guard case .issued(let again) = try await send(url, refresh) else {
                Issue.record("the refresh token is refused")
                return
            }
            #expect(again.refreshToken == nil && again.identityToken != nil)
            _ = try await control(url, "stop-using", #"{"client_id":"\#(Self.client)"}"#)
            #expect(
                try await send(url, refresh)
                    == .grantRefused(TokenRefusal(code: .invalidGrant, detail: .expiredOrRevoked))
            )
        }
    }

    private func claims(_ tokens: IssuedTokens) throws -> JSONValue {
        let token = try #require(tokens.identityToken)
        return try JSONValue(parsing: CompactJWS(parsing: Array(token.utf8)).payload)
    }

    @Test("An answer about another person, or with the hash of another access token, does not match.")
    func mismatch() async throws {
        try await withApple { url in
            for claim in ["sub", "at_hash"] {
                let device = try await control(url, "sign-in", #"{"client_id":"\#(Self.client)"}"#)
                _ = try await control(url, "behave", #"{"tamper":"\#(claim)"}"#)
                let answer = try await trade(url, try #require(device["authorizationCode"]?.string))
                guard case .issued(let tokens) = answer else {
                    Issue.record("\(answer)")
                    return
                }
                let claims = try claims(tokens)
                let matches = tokens.matches(
                    subject: try #require(claims["sub"]?.string),
                    accessTokenHash: claims["at_hash"]?.string,
                    presentedSubject: device["sub"]?.string
                )
                #expect(!matches, "\(claim)")
            }
        }
    }

    @Test("redirect_uri is sent only if it is given.")
    func redirectURI() async throws {
        try await withApple { url in
            let uri = "https://example.com/callback?a=b&c"
            guard case .issued = try await trade(url, code(url)),
                case .issued = try await trade(url, code(url, #","redirect_uri":"\#(uri)""#), redirectURI: uri)
            else {
                Issue.record("a code is refused")
                return
            }
            let refused = try await trade(url, code(url), redirectURI: uri)
            #expect(refused == .grantRefused(TokenRefusal(code: .invalidGrant, detail: .otherRedirectURI)))
            let requests = try #require(try await control(url, "log")["requests"]?.array)
            let sent = requests.map { $0["fields"]?.array?.contains(.string("redirect_uri")) }
            #expect(sent == [false, true, true])
        }
    }

    @Test("Each fault is reported as what it is, and leaves the code unused unless Apple processed the request.")
    func faults() async throws {
        try await withApple { url in
            let faults: [(String, Unavailability)] = [
                (#""status":500"#, Unavailability(.serverError)), (#""status":503"#, Unavailability(.serverError)),
                (#""retry_after":9"#, Unavailability(.throttled, retryAfter: 9)),
                (#""status":302"#, Unavailability(.notUnderstood)),
                (#""location":"\#(url)/auth/token""#, Unavailability(.notUnderstood)),
                (#""body":"{}","size":1048576"#, Unavailability(.notUnderstood)),
                (#""status":200,"body":"<html>""#, Unavailability(.notUnderstood)),
                (#""status":400,"body":"""#, Unavailability(.notUnderstood)),
            ]
            let code = try await code(url)
            for (fault, meaning) in faults {
                _ = try await control(url, "behave", "{\(fault)}")
                #expect(try await trade(url, code) == .unavailable(meaning), "\(fault)")
            }
            _ = try await control(url, "behave", #"{"cut":true}"#)
            let lost = try await trade(url, code)
            #expect(lost == .grantRefused(TokenRefusal(code: .invalidGrant, detail: .alreadyUsed)))
            let requests = try #require(try await control(url, "log")["requests"]?.array)
            #expect(requests.count == faults.count + 2, "one request each, and a second one after the cut")
            _ = try await control(url, "behave", #"{"delay_ms":20000}"#)
            let late = try await trade(url, code, budget: .milliseconds(200))
            #expect(late == .unavailable(Unavailability(.timedOut)))
        }
    }

    @Test("Date is the time of the simulated clock.")
    func date() async throws {
        try await withApple { url in
            _ = try await control(url, "advance", #"{"seconds":1000}"#)
            let before = WallTime.now()
            let response = try await Web.get("\(url)/auth/keys")
            let date = try #require(response.fields["date"].flatMap { WallTime(httpDate: $0) })
            // Date has whole seconds.
            #expect(date >= before + .seconds(999) && date <= WallTime.now() + .seconds(1_000))
        }
    }

    @Test("A dropped request gets no byte, is logged without a status, and leaves its code unused.")
    func dropped() async throws {
        try await withApple { url in
            let code = try await code(url)
            _ = try await control(url, "behave", #"{"drop":true}"#)
            let port = try #require(url.split(separator: ":").last.flatMap { Int($0) })
            let client = try await RawClient.connect(to: port, on: Web.eventLoops)
            let form =
                "grant_type=authorization_code&client_id=\(Self.client)&client_secret=\(Self.secret())&code=\(code)"
            let type = "Content-Type: application/x-www-form-urlencoded\r\n"
            let length = "Content-Length: \(form.utf8.count)\r\n"
            try await client.send("POST /auth/token HTTP/1.1\r\nHost: apple\r\n\(type)\(length)\r\n\(form)")
            let received = await client.rest()
            #expect(received.isEmpty, "\(received)")
            let requests = try #require(try await control(url, "log")["requests"]?.array)
            #expect(requests.map { $0["status"] } == [.null])
            guard case .issued = try await trade(url, code) else {
                Issue.record("the code was used up")
                return
            }
        }
    }

    @Test("With --client-key, only secrets that siwad client-secret signs with a registered key are accepted.")
    func clientKeys() async throws {
        try await TemporaryDirectory.with { directory in
            var files: [String] = []
            for name in ["AuthKey_KEY1234567.p8", "other.p8"] {
                let file = directory.file(name)
                let made = try await OpenSSL.run(
                    ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", file]
                )
                #expect(made.isSuccess && chmod(file, 0o600) == 0, "\(made.output)")
                files.append(file)
            }
            let published = directory.file("public.pem")
            let made = try await OpenSSL.run(["pkey", "-in", files[0], "-pubout", "-out", published])
            #expect(made.isSuccess, "\(made.output)")
            func secret(_ file: String) async throws -> String {
                let environment = [
                    "SIWAD_APPS": DaemonFixture.apps, "SIWAD_APPLE_KEYS": "AAAAAAAAAA/KEY1234567=\(file)",
                ]
                let run = try await siwad(["client-secret", "--client-id", Self.client], environment: environment)
                return String(try #require(run.lines.first, "\(run.errors)"))
            }
            let (good, bad) = (try await secret(files[0]), try await secret(files[1]))
            for key in [files[0], published] {
                let arguments = ["--apps", DaemonFixture.apps, "--client-key", "AAAAAAAAAA/KEY1234567=\(key)"]
                try await withApple(arguments) { url in
                    let code = try await code(url)
                    func trade(_ secret: String) async throws -> TokenAnswer {
                        let grant = TokenGrant.code(code, redirectURI: nil, clientID: Self.client, clientSecret: secret)
                        return try await send(url, grant)
                    }
                    let refused = TokenAnswer.clientRefused(TokenRefusal(code: .invalidClient, detail: .unspecified))
                    #expect(try await trade(bad) == refused)
                    #expect(try await trade(Self.secret()) == refused)
                    guard case .issued = try await trade(good) else {
                        Issue.record("a secret of the registered key is refused")
                        return
                    }
                }
            }
            let key = try directory.write("key.pem", try SimulatedApple.generate().key.pem())
            #expect(chmod(key, 0o600) == 0)
            for (text, reason) in [
                ("AAAAAAAAAA/KEY1234567", "lacks"), ("AAAAAAAAAA/KEY1234567=/nowhere", "/nowhere"),
                ("AAAAAAAAAA/KEY1234567=\(key)", "elliptic"),
            ] {
                let run = try await siwad(["simulate", "apple", "--key", key, "--client-key", text])
                #expect([1, 64].contains(run.status) && run.errors.contains(reason), "\(run.errors)")
            }
        }
    }

    // MARK: - Notifications and commands

    @Test("What a person does reaches the endpoint as a signed notification, unless notifications get lost.")
    func notifications() async throws {
        try await DaemonFixture.withDaemon { fixture, _, addresses in
            let arguments = ["--notify", addresses.notifications, "--apps", DaemonFixture.apps]
            try await withApple(arguments, key: fixture.apple) { url in
                let device = try await control(url, "sign-in", #"{"client_id":"\#(Self.client)","hide_email":true}"#)
                let off = try await control(url, "forwarding", #"{"on":false}"#)
                #expect(off["notifications"]?.array?.first?["status"]?.integer == 200)
                _ = try await control(url, "lose-notifications")
                let lost = try await control(url, "stop-using", #"{"client_id":"\#(Self.client)"}"#)
                #expect(lost["notifications"]?.array?.map { $0["status"] } == [.null])
                let sub = try #require(device["sub"]?.string)
                let stored = try await fixture.texts(
                    "SELECT event_type FROM siwa.notifications WHERE sub = '\(sub)' ORDER BY received_at"
                )
                #expect(stored == ["email-disabled"])
            }
        }
    }

    @Test("The commands control the simulated Apple that SIWAD_APPLE_URL names.")
    func commands() async throws {
        try await withApple { url in
            let environment = ["SIWAD_APPLE_URL": url]
            let signIn = ["simulate", "sign-in", "--client-id", Self.client, "--nonce", "n", "--hide-email"]
            let device = try await siwad(signIn, environment: environment)
            #expect(device.status == 0 && device.errors.isEmpty, "\(device.errors)")
            let value = try JSONValue(parsing: Array(device.output.utf8))
            #expect(value["user"]?["email"]?.string?.hasSuffix("@private.icloud.com") == true)
            let stop = ["simulate", "person", "stop-using", "--client-id", Self.client, "--apple-url", url]
            let stopped = try await siwad(stop)
            #expect(stopped.output.contains(#""type":"consent-revoked""#), "\(stopped.errors)")
            #expect(try await siwad(["simulate", "behave", "--status", "503", "--apple-url", url]).status == 0)
            let answer = try await trade(url, "c")
            #expect(answer == .unavailable(Unavailability(.serverError)))
            let mistake = try await siwad(stop)
            #expect(mistake.status == 1 && mistake.errors.contains("ada does not use \(Self.client)"))
            let behaviours: [([String], String?)] = [
                (["--rotate-keys"], nil), (["--no-repeat-code"], nil), (["--flag-form", "text"], nil),
                (["--endpoint", "keys", "--delay", "1", "--times", "2"], nil), (["--drop"], nil),
                (["--endpoint", "token", "--tamper", "at_hash"], nil), ([], "nothing would change: add --delay"),
            ]
            for (options, refusal) in behaviours {
                let run = try await siwad(["simulate", "behave"] + options, environment: environment)
                #expect(run.status == (refusal == nil ? 0 : 64), "\(options): \(run.errors)")
                if let refusal { #expect(run.errors.contains(refusal), "\(options): \(run.errors)") }
            }
        }
    }

    @Test("Nothing simulated listens beyond this machine, and no control request leaves it.")
    func loopback() async throws {
        try await TemporaryDirectory.with { directory in
            let key = try directory.write("key.pem", try SimulatedApple.generate().key.pem())
            for address in ["0.0.0.0:0", "[::]:0", "example.com:0"] {
                let run = try await siwad(["simulate", "apple", "--key", key, "--listen", address])
                #expect(run.status == 64 && run.errors.contains("loopback"), "\(run.errors)")
            }
            let real = try await siwad(["simulate", "sign-in", "--apple-url", "https://appleid.apple.com"])
            #expect(real.status == 64 && real.errors.contains("is not simulated"), "\(real.errors)")
            let plain = try await siwad(["config"], environment: ["SIWAD_APPLE_URL": "http://appleid.apple.com"])
            #expect(plain.status == 78 && plain.errors.contains("SIWAD_APPLE_URL"), "\(plain.errors)\(plain.output)")
        }
    }
}
