import AppleSimulator
import JOSE
import Testing

/// A simulated Apple at a fixed time, with two clients of one app group and one of another team.
struct Fixture {
    static let now: Int64 = 1_700_000_000_000
    static let seconds = now / 1_000
    static let apple = Result { try SimulatedApple.generate() }

    var server: TokenServer
    var now = Self.now

    init(isStrict: Bool = false, keys: [ClientSecretCheck.Key] = []) throws {
        let clients = [
            TokenServer.Client(id: "com.example.app", team: "TEAM567890", app: "com.example.app"),
            TokenServer.Client(id: "com.example.web", team: "TEAM567890", app: "com.example.app"),
            TokenServer.Client(id: "com.example.other", team: "OTHER67890", app: "com.example.other"),
        ]
        server = TokenServer(
            apple: try Self.apple.get(),
            clients: clients,
            secrets: ClientSecretCheck(keys: keys),
            isStrict: isStrict
        )
    }

    static func secret(
        client: String = "com.example.app",
        header: String = #"{"alg":"ES256","kid":"KEY4567890"}"#,
        team: String = "TEAM567890",
        audience: String = "https://appleid.apple.com",
        issuedAt: Int64 = seconds,
        expiry: Int64 = seconds + 300,
        signature: Int = 64
    ) -> String {
        let claims =
            #"{"iss":"\#(team)","iat":\#(issuedAt),"exp":\#(expiry),"aud":"\#(audience)","sub":"\#(client)"}"#
        return [Array(header.utf8), Array(claims.utf8), [UInt8](repeating: 7, count: signature)]
            .map(Base64URL.encode).joined(separator: ".")
    }

    mutating func control(_ control: TokenServer.Control, _ body: String = "") throws -> JSONValue {
        try server.perform(control, Array(body.utf8), at: now).response
    }

    mutating func events(_ control: TokenServer.Control, _ body: String = "") throws -> ControlAnswer {
        try server.perform(control, Array(body.utf8), at: now)
    }

    /// Signs ada in at com.example.app.
    mutating func code(_ members: String = "") throws -> String {
        let answer = try control(.signIn, #"{"client_id":"com.example.app"\#(members)}"#)
        return try #require(answer["authorizationCode"]?.string)
    }

    mutating func send(_ fields: [String: String], to endpoint: Behaviour.Endpoint = .token) throws -> SimulatedResponse
    {
        let usual = ["client_id": "com.example.app", "client_secret": Self.secret()]
        return try server.respond(to: endpoint, FormFields(usual.merging(fields) { $1 }), at: now)
    }

    mutating func trade(_ code: String, _ fields: [String: String] = [:]) throws -> SimulatedResponse {
        try send(["grant_type": "authorization_code", "code": code].merging(fields) { $1 })
    }

    mutating func refresh(_ token: String, _ fields: [String: String] = [:]) throws -> SimulatedResponse {
        try send(["grant_type": "refresh_token", "refresh_token": token].merging(fields) { $1 })
    }

    mutating func refreshToken() throws -> String {
        try #require(try trade(try code()).value["refresh_token"]?.string)
    }
}

extension SimulatedResponse {
    var value: JSONValue { (try? JSONValue(parsing: Array(body.utf8))) ?? .null }

    func claims() throws -> JSONValue {
        let token = try #require(value["id_token"]?.string)
        return try JSONValue(parsing: CompactJWS(parsing: Array(token.utf8)).payload)
    }
}

let notValidCode = SimulatedResponse.refusal("invalid_grant", "The code has expired or has been revoked.")
let notValidToken = SimulatedResponse.refusal("invalid_grant", "The token has expired or has been revoked.")
