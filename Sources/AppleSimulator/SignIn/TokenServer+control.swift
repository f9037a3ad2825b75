import Basics
package import JOSE

/// What a control request did: its response, and the notifications that Apple sends because of it.
package struct ControlAnswer: Sendable, Equatable {
    package var response: JSONValue
    package var events: [SimulatedEvent] = []
    /// False while notifications get lost.
    package var sendsEvents = true
}

/// The reason why a control request was refused, for the person who wrote it.
package struct ControlError: Error, Sendable, Equatable, CustomStringConvertible {
    package let description: String

    init(_ description: String) { self.description = description }
}

extension TokenServer {
    /// The control requests, the last part of `POST /simulator/…`.
    package enum Control: String, Sendable, CaseIterable {
        case signIn = "sign-in"
        case stopUsing = "stop-using"
        case deleteAccount = "delete-account"
        case forwarding
        case changePassword = "change-password"
        case loseNotifications = "lose-notifications"
        case behave, advance, reset, log
    }

    /// Performs a control request.
    ///
    /// - Parameters:
    ///   - body: a JSON object, or nothing.
    ///   - now: in milliseconds since 1970.
    package mutating func perform(
        _ control: Control,
        _ body: [UInt8],
        at now: Int64
    ) throws(ControlError) -> ControlAnswer {
        var members = try ControlMembers(parsing: body)
        let answer: ControlAnswer
        do {
            switch control {
            case .signIn: answer = try signIn(&members, at: now)
            case .stopUsing: answer = try stopUsing(&members, at: now)
            case .deleteAccount: answer = try deleteAccount(&members, at: now)
            case .forwarding: answer = try forward(&members, at: now)
            case .changePassword:
                let person = try person(&members)
                try members.end()
                endTokens(of: person.name)
                answer = acknowledgement()
            case .loseNotifications:
                let lost = try members.boolean("lost") ?? true
                try members.end()
                losesNotifications = lost
                answer = acknowledgement()
            case .behave: answer = try behave(&members)
            case .advance:
                guard let seconds = try members.integer("seconds"), (0...1_000_000_000).contains(seconds) else {
                    throw ControlError("advance needs seconds, a number from 0 to 1000000000")
                }
                try members.end()
                advanced = min(advanced + seconds * 1_000, 1_000_000_000_000)
                answer = acknowledgement()
            case .reset:
                try members.end()
                reset()
                answer = acknowledgement()
            case .log:
                try members.end()
                answer = ControlAnswer(response: .object([.init("requests", .array(log.map(\.json)))]))
            }
        } catch let error as ControlError {
            throw error
        } catch {
            throw ControlError("\(error)")
        }
        return answer
    }

    private func acknowledgement(_ events: [SimulatedEvent] = []) -> ControlAnswer {
        ControlAnswer(response: .object([]), events: events, sendsEvents: !losesNotifications)
    }

    private func person(_ members: inout ControlMembers) throws(ControlError) -> SimulatedPerson {
        let name = try members.string("person") ?? "ada"
        guard let person = people[name] else {
            throw ControlError(
                "\(name) is no person here: let the person sign in first; the simulated Apple forgets its people when it "
                    + "restarts"
            )
        }
        guard !person.isDeleted else { throw ControlError("the account of \(name) is deleted") }
        return person
    }

    private func requiredClient(_ members: inout ControlMembers) throws(ControlError) -> Client {
        let id = try members.string("client_id") ?? (clients?.count == 1 ? clients?.first?.id : nil)
        guard let id else { throw ControlError("client_id is missing: name the app") }
        guard let client = client(id) else {
            throw ControlError("\(id) is no registered client id: add it to the apps of the simulator")
        }
        return client
    }

    // MARK: Sign-in

    /// What `ASAuthorizationAppleIDCredential` gives to an app.
    private mutating func signIn(_ members: inout ControlMembers, at now: Int64) throws -> ControlAnswer {
        let name = try members.string("person") ?? "ada"
        let client = try requiredClient(&members)
        let nonce = try members.string("nonce")
        let redirectURI = try members.string("redirect_uri")
        let age = try members.integer("age") ?? 0
        let status = try members.integer("real_user_status")
        let hides = try members.boolean("hide_email") ?? false
        let names = (given: try members.string("given_name"), family: try members.string("family_name"))
        try members.end()
        guard (0...1_000_000_000).contains(age) else { throw ControlError("age is a number of seconds in the past") }
        guard status.map({ (0...2).contains($0) }) ?? true else { throw ControlError("real_user_status is 0, 1 or 2") }
        guard isPersonName(name) else { throw ControlError("a person is named with 1 to 32 letters and digits") }
        if isStrict, let redirectURI, !Self.isRegistrable(redirectURI) {
            throw ControlError("Apple accepts only https and a domain name in redirect_uri")
        }
        guard let apple = signers.last else { throw ControlError("there is no key") }
        var person = people[name] ?? SimulatedPerson(name: name)
        guard !person.isDeleted else { throw ControlError("the account of \(name) is deleted") }
        person.givenName = names.given ?? person.givenName
        person.familyName = names.family ?? person.familyName
        let isFirst = person.usedApps[client.app] == nil
        if isFirst { person.usedApps[client.app] = hides }
        people[name] = person
        // Apple has the claim at first sign-ins of devices only.
        let realUserStatus = status.map(Int.init) ?? (isFirst && redirectURI == nil ? 2 : nil)
        let time = seconds(now) - age
        let code = makeCode(
            for: person,
            client,
            redirectURI: redirectURI,
            nonce: nonce,
            realUserStatus: realUserStatus,
            issuedAt: time
        )
        let address = person.address(for: client.app)
        let identity = SimulatedIdentity(
            sub: person.sub,
            client: client.id,
            issuedAt: time,
            authenticatedAt: time,
            nonce: nonce,
            companion: .code(code),
            address: address,
            realUserStatus: realUserStatus,
            flags: flags
        )
        let fullName = JSONValue.object([
            .init("firstName", .string(person.givenName)), .init("lastName", .string(person.familyName)),
        ])
        let user = JSONValue.object([.init("name", fullName), .init("email", .string(address.email))])
        return ControlAnswer(
            response: .object([
                .init("identityToken", .string(try apple.token(for: identity))),
                .init("authorizationCode", .string(code)),
                .init("user", isFirst ? user : .null),
                .init("sub", .string(person.sub)),
            ])
        )
    }

    private func isPersonName(_ name: String) -> Bool {
        1...32 ~= name.utf8.count && name.utf8.allSatisfy(\.isLetterOrDigit)
    }

    /// Apple refuses http, IP addresses and localhost.
    private static func isRegistrable(_ uri: String) -> Bool {
        guard uri.hasPrefix("https://") else { return false }
        let host = uri.dropFirst("https://".count).prefix { $0 != "/" && $0 != "?" && $0 != ":" && $0 != "#" }
        let parts = host.split(separator: ".", omittingEmptySubsequences: false)
        guard let last = parts.last, parts.count > 1, !host.hasPrefix("[") else { return false }
        return parts.allSatisfy { !$0.isEmpty } && UInt64(last) == nil
    }

    // MARK: What makes Apple notify

    private func event(_ type: String, _ person: SimulatedPerson, _ app: String, _ now: Int64) -> SimulatedEvent {
        let hides = person.usedApps[app] ?? false
        let isAboutMail = type.hasPrefix("email")
        return SimulatedEvent(
            type: type,
            sub: person.sub,
            app: app,
            email: isAboutMail ? person.address(for: app).email : nil,
            isPrivateEmail: isAboutMail ? hides : nil,
            eventTime: milliseconds(now),
            issuedAt: seconds(now)
        )
    }

    private mutating func stopUsing(
        _ members: inout ControlMembers,
        at now: Int64
    ) throws(ControlError) -> ControlAnswer {
        let person = try person(&members)
        let client = try requiredClient(&members)
        try members.end()
        guard person.usedApps[client.app] != nil else {
            throw ControlError("\(person.name) does not use \(client.app)")
        }
        endAuthorization(of: person.name, for: client.app)
        return acknowledgement([event("consent-revoked", person, client.app, now)])
    }

    private mutating func deleteAccount(
        _ members: inout ControlMembers,
        at now: Int64
    ) throws(ControlError) -> ControlAnswer {
        let person = try person(&members)
        try members.end()
        endTokens(of: person.name)
        people[person.name]?.isDeleted = true
        return acknowledgement(person.usedApps.keys.sorted().map { event("account-deleted", person, $0, now) })
    }

    /// Turns the forwarding of mail on or off; Apple notifies the apps that have the relay address.
    private mutating func forward(
        _ members: inout ControlMembers,
        at now: Int64
    ) throws(ControlError) -> ControlAnswer {
        let person = try person(&members)
        let isOn = try members.boolean("on") ?? false
        try members.end()
        people[person.name]?.forwardsMail = isOn
        let apps = person.usedApps.filter(\.value).keys.sorted()
        return acknowledgement(apps.map { event(isOn ? "email-enabled" : "email-disabled", person, $0, now) })
    }

    // MARK: Behaviour

    private mutating func behave(_ members: inout ControlMembers) throws -> ControlAnswer {
        let endpoint = try members.choice("endpoint", Behaviour.Endpoint.self)
        let times = try members.integer("times")
        let delay = try members.integer("delay_ms")
        let effect = try effect(&members) ?? delay.map { _ in Behaviour.Effect.normal }
        let rotates = try members.boolean("rotate_keys") ?? false
        let repeats = try members.boolean("repeat_code")
        let flags = try members.choice("flags", SimulatedIdentity.Flags.self)
        try members.end()
        guard Behaviour.Limits.times.contains(times ?? 1), Behaviour.Limits.delay.contains(delay ?? 0) else {
            throw ControlError("times or delay_ms is out of range")
        }
        if let effect {
            let endpoint = endpoint ?? .token
            guard endpoint == .token || ![.otherSubject, .otherHash].contains(effect) else {
                throw ControlError("tamper changes a token: leave endpoint out, or write token")
            }
            behaviours.append(
                Behaviour(endpoint: endpoint, times: Int(times ?? 1), delay: Int(delay ?? 0), effect: effect)
            )
        } else if endpoint != nil || times != nil {
            throw ControlError(
                "endpoint and times need an effect: add delay_ms, a response (status, body, …), cut, drop or tamper; "
                    + "rotate_keys, repeat_code and flags have neither"
            )
        } else if !rotates, repeats == nil, flags == nil {
            throw ControlError(
                "behave changes nothing: add delay_ms, a response (status, body, …), cut, drop, tamper, rotate_keys, "
                    + "repeat_code or flags"
            )
        }
        if rotates, let apple = signers.last { rotate(to: try .generate(issuer: apple.issuer)) }
        repeatsCode = repeats ?? repeatsCode
        self.flags = flags ?? self.flags
        return acknowledgement()
    }

    /// What happens to the next requests; nil if none of its members is there.
    private func effect(_ members: inout ControlMembers) throws(ControlError) -> Behaviour.Effect? {
        var effects: [Behaviour.Effect] = []
        if let answer = try answer(&members) { effects.append(.answer(answer)) }
        if try members.boolean("cut") ?? false { effects.append(.cut) }
        if try members.boolean("drop") ?? false { effects.append(.drop) }
        switch try members.string("tamper") {
        case nil: break
        case "sub": effects.append(.otherSubject)
        case "at_hash": effects.append(.otherHash)
        case .some: throw ControlError("tamper is sub or at_hash")
        }
        guard effects.count <= 1 else {
            throw ControlError("choose one of a response (status, body, …), cut, drop, and tamper")
        }
        return effects.first
    }

    /// The response that replaces the usual one; nil if none of its members is there.
    private func answer(_ members: inout ControlMembers) throws(ControlError) -> SimulatedResponse? {
        let status = try members.integer("status")
        let body = try members.string("body")
        let size = try members.integer("size")
        let contentType = try members.string("content_type")
        let location = try members.string("location")
        let retryAfter = try members.integer("retry_after")
        guard Behaviour.Limits.status.contains(status ?? 200), Behaviour.Limits.retryAfter.contains(retryAfter ?? 0),
            Behaviour.Limits.size.contains(size ?? 0)
        else { throw ControlError("status, retry_after or size is out of range") }
        for text in [contentType, location].compactMap(\.self) where !text.utf8.allSatisfy({ 0x20...0x7E ~= $0 }) {
            throw ControlError("content_type and location are visible ASCII")
        }
        var usual: Int64?
        if body != nil || size != nil || contentType != nil { usual = 200 }
        if location != nil { usual = 302 }
        if retryAfter != nil { usual = 429 }
        guard let status = status ?? usual else { return nil }
        var response = SimulatedResponse(status: Int(status), body: body ?? "", retryAfter: retryAfter.map(Int.init))
        // White space after JSON belongs to it.
        response.body += String(repeating: " ", count: max(0, Int(size ?? 0) - response.body.utf8.count))
        response.contentType = contentType ?? response.contentType
        response.location = location
        return response
    }
}
