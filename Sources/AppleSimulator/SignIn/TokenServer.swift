package import JOSE

/// Apple's part of a sign-in: people, authorization codes, tokens and a clock, in memory. A value without I/O: each request
/// is a method with the time as an argument, in milliseconds since 1970, and returns the response.
package struct TokenServer: Sendable {
    /// A client id with what the developer registered for it.
    package struct Client: Sendable, Equatable {
        package let id: String
        /// nil: any team may sign its client secrets.
        package let team: String?
        /// The primary App ID of its group, the `aud` of notifications.
        package let app: String

        package init(id: String, team: String?, app: String) {
            self.id = id
            self.team = team
            self.app = app
        }
    }

    /// A code is valid for five minutes.
    package static let codeLifetime: Int64 = 300

    private struct Code {
        enum State { case open, used, revoked }

        let person: String
        let client: Client
        let redirectURI: String?
        let nonce: String?
        let realUserStatus: Int?
        /// In seconds since 1970.
        let issuedAt: Int64
        var state = State.open
    }

    private struct CodeOwner: Hashable {
        let person: String
        let client: String
    }

    private struct RefreshToken {
        let person: String
        let client: Client
        let authenticatedAt: Int64
    }

    /// nil: every client id is registered, each as an app group of its own.
    let clients: [Client]?
    let isStrict: Bool
    private let secrets: ClientSecretCheck
    /// The key that the process was started with.
    private let apple: SimulatedApple
    /// The published keys. The last one signs.
    package private(set) var signers: [SimulatedApple]

    var people: [String: SimulatedPerson] = [:]
    private var codes: [String: Code] = [:]
    private var refreshTokens: [String: RefreshToken] = [:]
    /// The refresh token of each access token.
    private var accessTokens: [String: String] = [:]
    private var lastCodes: [CodeOwner: String] = [:]

    /// In milliseconds.
    var advanced: Int64 = 0
    var flags = SimulatedIdentity.Flags.boolean
    var losesNotifications = false
    var repeatsCode = false
    var behaviours: [Behaviour] = []
    private(set) var log: [RequestRecord] = []

    /// - Parameters:
    ///   - others: published before the key of `apple`.
    ///   - isStrict: refuses redirect URIs that Apple does not allow to register.
    package init(
        apple: SimulatedApple,
        others: [SimulatedApple] = [],
        clients: [Client]? = nil,
        secrets: ClientSecretCheck = ClientSecretCheck(),
        isStrict: Bool = false
    ) {
        self.apple = apple
        signers = others + [apple]
        self.clients = clients
        self.secrets = secrets
        self.isStrict = isStrict
    }

    package var keySetJSON: String { SimulatedApple.keySetJSON(of: signers) }

    func client(_ id: String) -> Client? {
        guard let clients else { return Client(id: id, team: nil, app: id) }
        return clients.first { $0.id == id }
    }

    /// Apple publishes three keys. The one of the start stays, because other commands sign with its file.
    mutating func rotate(to new: SimulatedApple) {
        signers.append(new)
        if signers.count > 3 { signers.remove(at: signers[0].keyID == apple.keyID ? 1 : 0) }
    }

    /// Forgets people, codes, tokens, behaviours and the log, and resets the clock. Keys and clients stay.
    mutating func reset() {
        let keys = signers
        self = TokenServer(apple: apple, clients: clients, secrets: secrets, isStrict: isStrict)
        signers = keys
    }
}

// MARK: - Requests

extension TokenServer {
    /// Answers a request and logs it.
    ///
    /// - Parameters:
    ///   - form: nil if the body is no valid form.
    ///   - now: in milliseconds since 1970.
    package mutating func respond(
        to endpoint: Behaviour.Endpoint,
        _ form: FormFields?,
        at now: Int64
    ) throws(JOSEError) -> SimulatedResponse {
        let behaviour = nextBehaviour(at: endpoint)
        var response: SimulatedResponse
        switch (behaviour.effect, endpoint) {
        case (.answer(let given), _): response = given
        case (.drop, _): response = .dropped
        case (_, .keys): response = SimulatedResponse(body: keySetJSON)
        case (_, .token): response = try tokens(form, at: seconds(now), behaviour.effect)
        case (_, .revoke): response = revocation(form, at: seconds(now))
        }
        response.delay = behaviour.delay
        if behaviour.effect == .cut { response.isCut = true }
        log.append(RequestRecord(endpoint, form, response, at: seconds(now)))
        log.removeFirst(max(0, log.count - RequestRecord.maximumCount))
        return response
    }

    private mutating func nextBehaviour(at endpoint: Behaviour.Endpoint) -> Behaviour {
        guard let index = behaviours.firstIndex(where: { $0.endpoint == endpoint }) else {
            return Behaviour(endpoint: endpoint)
        }
        let behaviour = behaviours[index]
        behaviours[index].times -= 1
        if behaviours[index].times <= 0 { behaviours.remove(at: index) }
        return behaviour
    }

    /// Apple's time in milliseconds.
    package func milliseconds(_ now: Int64) -> Int64 { now &+ advanced }

    /// Apple's time in seconds.
    func seconds(_ now: Int64) -> Int64 { milliseconds(now) / 1_000 }

    private mutating func tokens(
        _ form: FormFields?,
        at now: Int64,
        _ effect: Behaviour.Effect
    ) throws(JOSEError) -> SimulatedResponse {
        guard let form, let grant = form["grant_type"] else { return .refusal("invalid_request") }
        switch grant {
        case "authorization_code": return try codeGrant(form, at: now, effect)
        case "refresh_token": return try refreshGrant(form, at: now, effect)
        default: return .refusal("unsupported_grant_type")
        }
    }

    /// Apple looks for the code before it checks the client secret, so an unknown code hides a wrong secret.
    private mutating func codeGrant(
        _ form: FormFields,
        at now: Int64,
        _ effect: Behaviour.Effect
    ) throws(JOSEError) -> SimulatedResponse {
        guard let text = form["code"] else { return .refusal("invalid_request") }
        let notValid = SimulatedResponse.refusal("invalid_grant", "The code has expired or has been revoked.")
        guard let clientID = form["client_id"], form["client_secret"] != nil else { return .refusal("invalid_client") }
        guard let code = codes[text], let person = people[code.person] else { return notValid }
        guard isAuthentic(form, at: now) else { return .refusal("invalid_client") }
        guard code.client.id == clientID else { return Self.mismatch("client_id", clientID) }
        guard code.redirectURI == form["redirect_uri"] else {
            return Self.mismatch("redirect_uri", form["redirect_uri"])
        }
        switch code.state {
        case .used: return .refusal("invalid_grant", "The code has already been used.")
        case .revoked: return notValid
        case .open: guard now < code.issuedAt + Self.codeLifetime else { return notValid }
        }
        codes[text]?.state = .used
        let refresh = OpaqueToken.refresh.random(person.letters)
        refreshTokens[refresh] = RefreshToken(
            person: person.name,
            client: code.client,
            authenticatedAt: code.issuedAt
        )
        return try issue(
            refresh,
            isNew: true,
            to: person,
            at: now,
            nonce: code.nonce,
            realUserStatus: code.realUserStatus,
            effect
        )
    }

    private mutating func refreshGrant(
        _ form: FormFields,
        at now: Int64,
        _ effect: Behaviour.Effect
    ) throws(JOSEError) -> SimulatedResponse {
        guard let text = form["refresh_token"] else { return .refusal("invalid_request") }
        guard let clientID = form["client_id"], form["client_secret"] != nil else { return .refusal("invalid_client") }
        guard let token = refreshTokens[text], let person = people[token.person] else {
            return .refusal("invalid_grant", "The token has expired or has been revoked.")
        }
        guard isAuthentic(form, at: now) else { return .refusal("invalid_client") }
        guard token.client.id == clientID else { return .refusal("invalid_grant") }
        return try issue(text, isNew: false, to: person, at: now, nonce: nil, realUserStatus: nil, effect)
    }

    private mutating func issue(
        _ refresh: String,
        isNew: Bool,
        to person: SimulatedPerson,
        at now: Int64,
        nonce: String?,
        realUserStatus: Int?,
        _ effect: Behaviour.Effect
    ) throws(JOSEError) -> SimulatedResponse {
        guard let token = refreshTokens[refresh], let apple = signers.last else { return .refusal("invalid_grant") }
        let access = OpaqueToken.access.random(person.letters)
        accessTokens[access] = refresh
        let identity = SimulatedIdentity(
            sub: effect == .otherSubject ? SimulatedEvent.randomSubject() : person.sub,
            client: token.client.id,
            issuedAt: now,
            authenticatedAt: token.authenticatedAt,
            nonce: nonce,
            companion: .accessToken(effect == .otherHash ? refresh : access),
            address: person.address(for: token.client.app),
            realUserStatus: realUserStatus,
            flags: flags
        )
        return .tokens(access: access, refresh: isNew ? refresh : nil, identity: try apple.token(for: identity))
    }

    /// Apple answers 200 to invalid tokens too, so that 200 proves nothing.
    private mutating func revocation(_ form: FormFields?, at now: Int64) -> SimulatedResponse {
        guard let form, let text = form["token"], form["client_id"] != nil, form["client_secret"] != nil else {
            return .refusal("invalid_client")
        }
        let refresh = accessTokens[text] ?? text
        // Looked for before the client secret is checked, as codes are.
        guard let token = refreshTokens[refresh] else { return SimulatedResponse() }
        guard isAuthentic(form, at: now) else { return .refusal("invalid_client") }
        guard token.client.id == form["client_id"] else { return SimulatedResponse() }
        endAuthorization(of: token.person, for: token.client.app)
        return SimulatedResponse()
    }

    private func isAuthentic(_ form: FormFields, at now: Int64) -> Bool {
        guard let id = form["client_id"], let secret = form["client_secret"], let client = client(id) else {
            return false
        }
        return secrets.accepts(secret, for: client, now: now)
    }

    private static func mismatch(_ field: String, _ value: String?) -> SimulatedResponse {
        .refusal("invalid_grant", value.map { "\(field) mismatch. The code was not issued to \($0)" })
    }
}

// MARK: - Codes and tokens

extension TokenServer {
    /// Makes the code of a sign-in, or repeats the last one of the person at the client if `repeatsCode` is set.
    mutating func makeCode(
        for person: SimulatedPerson,
        _ client: Client,
        redirectURI: String?,
        nonce: String?,
        realUserStatus: Int?,
        issuedAt: Int64
    ) -> String {
        let owner = CodeOwner(person: person.name, client: client.id)
        if repeatsCode, let code = lastCodes[owner] { return code }
        let code = OpaqueToken.code.random(person.letters)
        lastCodes[owner] = code
        codes[code] = Code(
            person: person.name,
            client: client,
            redirectURI: redirectURI,
            nonce: nonce,
            realUserStatus: realUserStatus,
            issuedAt: issuedAt
        )
        return code
    }

    /// Ends codes and tokens of a person: of all clients of an app group, or of all groups.
    mutating func endTokens(of person: String, for app: String? = nil) {
        func isMeant(_ owner: String, _ client: Client) -> Bool { owner == person && (app ?? client.app) == client.app }
        for (text, code) in codes where isMeant(code.person, code.client) && code.state == .open {
            codes[text]?.state = .revoked
        }
        let ended = refreshTokens.filter { isMeant($0.value.person, $0.value.client) }
        for text in ended.keys { refreshTokens[text] = nil }
        accessTokens = accessTokens.filter { ended[$0.value] == nil }
    }

    /// Ends the use of an app group: the next sign-in is a first one again.
    mutating func endAuthorization(of person: String, for app: String) {
        endTokens(of: person, for: app)
        people[person]?.usedApps[app] = nil
    }
}
