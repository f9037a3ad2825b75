import AppleTokens
import Basics
import JOSE
import SignIn
import Telemetry
import Testing

@testable import Settings

@Suite("The configuration")
struct ConfigurationTests {
    private func load(
        flags: [SettingKey: String] = [:],
        environment: [String: String] = [:],
        files: [String: String] = [:]
    ) throws -> Configuration {
        try Configuration(
            from: SettingsSources(
                flags: flags,
                environment: environment,
                configurationFile: files["siwad.yaml"] == nil ? nil : "siwad.yaml",
                readFile: { path throws(FileReadingError) in
                    guard let text = files[path] else { throw FileReadingError.noFile }
                    return Array(text.utf8)
                }
            )
        )
    }

    private func problems(
        flags: [SettingKey: String] = [:],
        environment: [String: String] = [:],
        files: [String: String] = [:]
    ) -> [String] {
        do {
            _ = try load(flags: flags, environment: environment, files: files)
            return []
        } catch let error as SettingsError {
            return error.problems
        } catch {
            return ["\(error)"]
        }
    }

    @Test("uses a default where no source sets a value, and accepts the default as a value.")
    func defaults() throws {
        let texts = Dictionary(
            uniqueKeysWithValues: SettingKey.allCases.compactMap { key in key.defaultText.map { (key, $0) } }
        )
        let written = try load(flags: texts)
        let assumed = try load()
        #expect(written.listen == assumed.listen && written.operationsListen == assumed.operationsListen)
        #expect(written.keysURL == assumed.keysURL && written.notificationPath == assumed.notificationPath)
        #expect(written.keysRefresh == assumed.keysRefresh && written.keysRefreshFloor == assumed.keysRefreshFloor)
        #expect(written.keysRefreshBurst == assumed.keysRefreshBurst)
        #expect(written.keysMaximumAge == assumed.keysMaximumAge)
        #expect(written.clockLeeway == assumed.clockLeeway && written.retention == assumed.retention)
        #expect(written.shutdownGrace == assumed.shutdownGrace && written.issuer == assumed.issuer)
        #expect(written.spoolLimit == assumed.spoolLimit && written.batchLimit == assumed.batchLimit)
        #expect(written.queueBytes == assumed.queueBytes)
        #expect(written.queueLimit == assumed.queueLimit && written.deadLetterLimit == assumed.deadLetterLimit)
        #expect(written.logLevel == assumed.logLevel && written.databaseConnections == assumed.databaseConnections)
        #expect(assumed.database == .notConfigured && assumed.apps == nil && assumed.tls == nil)
    }

    @Test("prefers flags to the environment, the environment to the file, and the file to defaults.")
    func precedence() throws {
        let file = ["siwad.yaml": "batch_limit: 1\nqueue_limit: 1\ndead_letter_limit: 1"]
        let environment = ["SIWAD_BATCH_LIMIT": "2", "SIWAD_QUEUE_LIMIT": "2"]
        let configuration = try load(flags: [.batchLimit: "3"], environment: environment, files: file)
        #expect(configuration.batchLimit == 3)
        #expect(configuration.queueLimit == 2)
        #expect(configuration.deadLetterLimit == 1)
        #expect(configuration.databaseConnections == 4)
        #expect(configuration.origin(of: .batchLimit).description == "--batch-limit")
        #expect(configuration.origin(of: .queueLimit).description == "SIWAD_QUEUE_LIMIT")
        #expect(configuration.origin(of: .deadLetterLimit).description == "siwad.yaml:3")
        #expect(configuration.origin(of: .databaseConnections).description == "default")
    }

    @Test("finds the database in SIWAD_DATABASE_URL, else DATABASE_URL, else libpq's variables.")
    func database() throws {
        let ours = ["SIWAD_DATABASE_URL": "postgres://a/b", "DATABASE_URL": "postgres://c/d", "PGHOST": "e"]
        #expect(try load(environment: ours).database == .conninfo("postgres://a/b"))
        let common = ["DATABASE_URL": "postgres://c/d", "PGHOST": "e"]
        #expect(try load(environment: common).database == .conninfo("postgres://c/d"))
        #expect(try load(environment: ["PGHOST": "e"]).database == .libpqEnvironment)
        #expect(try load(environment: ["PGPASSWORD": "e"]).database == .notConfigured)
        let file = ["siwad.yaml": "database_url: host=f"]
        #expect(try load(environment: common, files: file).database == .conninfo("host=f"))
    }

    @Test("ignores an empty environment variable.")
    func emptyVariable() throws {
        #expect(try load(environment: ["SIWAD_BATCH_LIMIT": "", "SIWAD_DATABASE_URL": ""]).batchLimit == 256)
    }

    @Test("reads a secret from the file that SIWAD_…_FILE names, without its last line break.")
    func secretFile() throws {
        let configuration = try load(
            environment: ["SIWAD_DATABASE_URL_FILE": "/run/secrets/db"],
            files: ["/run/secrets/db": "postgres://siwad:geheim@db/siwa\n"]
        )
        #expect(configuration.database == .conninfo("postgres://siwad:geheim@db/siwa"))
        let entry = try #require(configuration.entries.first { $0.key == .databaseURL })
        #expect(entry.text == "postgres://siwad:****@db/siwa")
        #expect(entry.origin.description == "SIWAD_DATABASE_URL_FILE")
    }

    @Test("reads the sealing keys from lines or a list, prints their names only, and has no flag for them.")
    func sealingKeys() throws {
        let lines = try ["new", "old"].map { name in try SealingKeys.newLine(name: name) }
        let secret = try load(
            environment: ["SIWAD_SEALING_KEYS_FILE": "/run/secrets/keys"],
            files: ["/run/secrets/keys": lines.joined(separator: "\n") + "\n"]
        )
        #expect(secret.sealingKeys?.names == ["new", "old"])
        #expect(secret.entries.first { $0.key == .sealingKeys }?.text == "new:****,old:****")
        let list = try load(files: ["siwad.yaml": "sealing_keys:\n" + lines.map { "- \($0)\n" }.joined()])
        #expect(list.sealingKeys == secret.sealingKeys)
        #expect(list.digest() == secret.digest())
        #expect(try load().sealingKeys == nil)
        #expect(!SettingKey.sealingKeys.hasFlag && SettingKey.sealingKeys.isReloadable)
        let problem = problems(environment: ["SIWAD_SEALING_KEYS": lines[0] + "\nold:c2VjcmV0"])
        #expect(
            problem == [
                "SIWAD_SEALING_KEYS: line 2: the key is not base64 of 32 bytes: siwad sealing new-key prints one"
            ]
        )
    }

    @Test("has the same digest for the same values in other spellings, and another one for other values.")
    func spellings() throws {
        let one = [
            "SIWAD_EFFECTS": "ON", "SIWAD_KEEP_NAMES": "TRUE", "SIWAD_DELIVERY_ALLOW": "10.0.0.0/8, 192.168.0.0/16",
        ]
        let file = "effects: on\nkeep_names: true\ndelivery_allow:\n- 192.168.0.0/16\n- 10.0.0.0/8\n"
        #expect(try load(environment: one).digest() == load(files: ["siwad.yaml": file]).digest())
        #expect(try load(environment: one).digest() != load(files: ["siwad.yaml": "effects: off\n"]).digest())
    }

    @Test("reads the callers of the application endpoint, prints their names only, and has no flag for them.")
    func callers() throws {
        let lines = [
            "shop " + String(repeating: "ab", count: 32), "web " + String(repeating: "cd", count: 32) + " a.b",
        ]
        let file = try load(
            environment: ["SIWAD_APPLICATION_TOKENS_FILE": "/run/secrets/tokens"],
            files: ["/run/secrets/tokens": lines.joined(separator: "\n")]
        )
        #expect(file.applicationTokens?.names == ["shop", "web"])
        #expect(file.entries.first { $0.key == .applicationTokens }?.text == "shop ****,web ****")
        let list = try load(files: ["siwad.yaml": "application_tokens:\n" + lines.map { "- \($0)\n" }.joined()])
        #expect(list.applicationTokens == file.applicationTokens)
        #expect(!SettingKey.applicationTokens.hasFlag && SettingKey.applicationTokens.isReloadable)
        let problem = problems(environment: ["SIWAD_APPLICATION_TOKENS": "shop abab"]).first ?? ""
        #expect(problem.hasPrefix("SIWAD_APPLICATION_TOKENS: line 1: ") && !problem.contains("abab"))
    }

    @Test("leaves an ignored setting unset, whatever the sources say.")
    func ignored() throws {
        var sources = SettingsSources(
            flags: [.listen: "127.0.0.1:1", .issuer: "https://a.example"],
            environment: ["SIWAD_APPLICATION_TOKENS": "shop " + String(repeating: "ab", count: 32)]
        )
        sources.ignored = [.listen, .applicationTokens]
        let configuration = try Configuration(from: sources)
        #expect(configuration.listen.port == 8080 && configuration.origin(of: .listen) == .unset)
        #expect(configuration.applicationTokens == nil)
        #expect(configuration.issuer == "https://a.example")
    }

    @Test("listens for applications on a Unix socket without further settings.")
    func applicationSocket() throws {
        let socket = try load(environment: ["SIWAD_APPLICATION_LISTEN": "unix:/run/siwad/application.sock"])
        #expect(socket.applicationListen == .unix("/run/siwad/application.sock"))
        #expect(
            socket.applicationSocketMode == 0o660 && socket.applicationTokens == nil && socket.applicationTLS == nil
        )
        #expect(try load().applicationListen == nil)
        #expect(try load(environment: ["SIWAD_APPLICATION_SOCKET_MODE": "0600"]).applicationSocketMode == 0o600)
        for path in ["unix:", "unix:run", "unix:/" + String(repeating: "x", count: 107)] {
            #expect(problems(environment: ["SIWAD_APPLICATION_LISTEN": path]).count == 1)
        }
        for mode in ["660x", "0400", "1777", "6", "0o660"] {
            #expect(problems(environment: ["SIWAD_APPLICATION_SOCKET_MODE": mode]).count == 1, "\(mode)")
        }
    }

    @Test("refuses to serve applications over TCP without tokens, and to listen beyond loopback without TLS.")
    func applicationTCP() throws {
        let tokens = ["SIWAD_APPLICATION_TOKENS": "shop " + String(repeating: "ab", count: 32)]
        let tls = ["SIWAD_APPLICATION_TLS_CERTIFICATE": "/c.pem", "SIWAD_APPLICATION_TLS_KEY": "/k.pem"]
        func problems(at address: String, with settings: [[String: String]]) -> [String] {
            let environment = settings.reduce(["SIWAD_APPLICATION_LISTEN": address]) { $0.merging($1) { $1 } }
            return self.problems(environment: environment)
        }
        for address in ["127.0.0.1:8070", "localhost:8070", "[::1]:8070"] {
            #expect(problems(at: address, with: [tokens]).isEmpty)
            // Operators who may not read the tokens use the same file.
            let without = try load(environment: ["SIWAD_APPLICATION_LISTEN": address])
            let error = #expect(throws: SettingsError.self) { try without.checkServing() }
            #expect(error?.description.contains("SIWAD_APPLICATION_TOKENS is not set") == true)
        }
        for address in ["0.0.0.0:8070", "10.1.2.3:8070", "siwad.example.com:8070", "[::]:8070"] {
            #expect(problems(at: address, with: [tokens, tls]).isEmpty)
            #expect(problems(at: address, with: [tokens]).first?.contains("is not a loopback address") == true)
            #expect(problems(at: address, with: []).count == 1)
        }
        #expect(
            self.problems(environment: ["SIWAD_APPLICATION_TLS_KEY": "/k.pem"]) == [
                "SIWAD_APPLICATION_TLS_KEY needs SIWAD_APPLICATION_TLS_CERTIFICATE too"
            ]
        )
    }

    @Test("reads how sign-ins are checked and kept.")
    func signIn() throws {
        let assumed = try load()
        #expect(assumed.codeExchange == .preferred && assumed.noncePolicy == .required && assumed.keepsNames)
        #expect(assumed.identityTokenAge == .seconds(600) && assumed.signInRetention == .seconds(30 * 86_400))
        let written = try load(
            environment: [
                "SIWAD_CODE_EXCHANGE": "required", "SIWAD_NONCE": "issued", "SIWAD_KEEP_NAMES": "false",
                "SIWAD_IDENTITY_TOKEN_AGE": "60s",
            ]
        )
        #expect(written.codeExchange == .required && written.noncePolicy == .issued && !written.keepsNames)
        #expect(written.identityTokenAge == .seconds(60))
        let bad = [
            "SIWAD_KEEP_NAMES": "maybe", "SIWAD_SIGN_IN_RETENTION": "1d", "SIWAD_NONCE": "none",
            "SIWAD_IDENTITY_TOKEN_AGE": "25h",
        ]
        #expect(problems(environment: bad).count == 4)
    }

    @Test("reads how long a client secret is valid: five minutes, or from a minute to Apple's limit.")
    func clientSecretLifetime() throws {
        #expect(try load().clientSecretLifetime == .seconds(300))
        for seconds in [60, 600, 15_777_000] {
            let written = try load(environment: ["SIWAD_CLIENT_SECRET_LIFETIME": "\(seconds)s"])
            #expect(written.clientSecretLifetime == .seconds(seconds))
        }
    }

    @Test("reads a secret from the credential of systemd, unless a variable sets it.")
    func credential() throws {
        let directory = ["CREDENTIALS_DIRECTORY": "/run/credentials/siwad.service"]
        let files = [
            "/run/credentials/siwad.service/database-url": "host=credential\n", "/run/secrets/db": "host=secret",
            "siwad.yaml": "database_url: host=file",
        ]
        let configuration = try load(environment: directory, files: files)
        #expect(configuration.database == .conninfo("host=credential"))
        #expect(configuration.origin(of: .databaseURL).description == "credential database-url")
        let variables = [("SIWAD_DATABASE_URL", "host=variable"), ("SIWAD_DATABASE_URL_FILE", "/run/secrets/db")]
        for (name, value) in variables {
            let environment = directory.merging([name: value]) { $1 }
            #expect(try load(environment: environment, files: files).origin(of: .databaseURL).description == name)
        }
        // The directory may have other credentials only.
        let others = try load(environment: directory, files: ["siwad.yaml": "database_url: host=file"])
        #expect(others.database == .conninfo("host=file"))
        let empty = problems(environment: directory, files: ["/run/credentials/siwad.service/database-url": "\n"])
        #expect(
            empty == [
                "credential database-url: /run/credentials/siwad.service/database-url is empty: write the value into it"
            ]
        )
    }

    @Test("never prints a URL or a token that was set as another setting.")
    func strays() throws {
        let url = "postgresql://u:S3cret@h/db"
        let token = "eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJTM2NyZXQifQ.c2ln"
        for key in SettingKey.allCases {
            for text in [url, token] {
                let found = problems(environment: [key.environmentName: text])
                #expect(!found.contains { $0.contains("S3cret") || $0.contains("eyJ") }, "\(found)")
            }
        }
        for text in ["\"\(url)\": a", "\(token): a", "\"\(url)\": 1\n\"\(url)\": 2"] {
            let found = problems(files: ["siwad.yaml": text])
            #expect(!found.isEmpty)
            #expect(!found.contains { $0.contains("S3cret") || $0.contains("eyJ") }, "\(found)")
        }
    }

    @Test("does not mask identifiers of Apple.")
    func identifiers() {
        for text in ["com.example.app", "000768.6166f031167141e695698239959f591a.1521", "siwad.yaml", "/etc/a.b.c"] {
            #expect(Redaction.redacted(text) == text)
        }
    }

    @Test(
        "reports a malformed value with its source and what to write.",
        arguments: [
            ("SIWAD_DATABASE_CONNECTIONS", "1", "write a whole number from 2 to 100"),
            ("SIWAD_DATABASE_CONNECTIONS", "4.5", "write a whole number from 2 to 100"),
            ("SIWAD_LISTEN", "8080", "write host:port, such as 127.0.0.1:8080 or [::1]:8080"),
            ("SIWAD_LISTEN", "::1:8080", "write an IPv6 address in brackets, such as [::1]:8080"),
            ("SIWAD_LISTEN", "a:70000", "the port must be a number from 0 to 65535, as in 127.0.0.1:8080"),
            ("SIWAD_OPERATIONS_LISTEN", "a b:1", "write host:port, such as 127.0.0.1:8080 or [::1]:8080"),
            ("SIWAD_NOTIFICATION_PATH", "apple", "write a path that starts with /, such as /apple/notifications"),
            ("SIWAD_KEYS_REFRESH", "3600", "write a duration such as 500ms, 60s, 5m, 1h or 400d"),
            ("SIWAD_KEYS_REFRESH", "1 h", "write a duration such as 500ms, 60s, 5m, 1h or 400d"),
            ("SIWAD_KEYS_REFRESH", "0s", "write a duration from 100ms to 30d"),
            ("SIWAD_KEYS_REFRESH_BURST", "0", "write a whole number from 1 to 1000"),
            ("SIWAD_KEYS_MAXIMUM_AGE", "0s", "write a duration from 1s to 36500d"),
            ("SIWAD_KEYS_REFRESH_FLOOR", "-1s", "write a duration such as 500ms, 60s, 5m, 1h or 400d"),
            ("SIWAD_CLOCK_LEEWAY", "2d", "write a duration from 0s to 1d"),
            ("SIWAD_CLIENT_SECRET_LIFETIME", "59s", "write a duration from 1m to 262950m"),
            ("SIWAD_CLIENT_SECRET_LIFETIME", "15777001s", "write a duration from 1m to 262950m"),
            ("SIWAD_RETENTION", "99999999999999999d", "write a duration such as 500ms, 60s, 5m, 1h or 400d"),
            ("SIWAD_QUEUE_BYTES", "1KiB", "write a size from 128KiB to 1024GiB"),
            ("SIWAD_SPOOL_LIMIT", "1XB", "write a size such as 512MiB or 1GiB"),
            ("SIWAD_SPOOL_LIMIT", "9223372036854775807KiB", "write a size such as 512MiB or 1GiB"),
            ("SIWAD_BATCH_LIMIT", "many", "write a whole number from 1 to 10000"),
            ("SIWAD_LOG_LEVEL", "loud", "write one of trace, debug, info, notice, warning, error, critical"),
            ("SIWAD_LOG_FORMAT", "xml", "write one of text, json"),
            ("SIWAD_ISSUER", "a\u{7}", "write one line of text"),
        ]
    )
    func malformed(name: String, text: String, advice: String) throws {
        let problem = try #require(problems(environment: [name: text]).first)
        let shown = text.replacing("\u{7}", with: "�")
        #expect(problem == "\(name) is “\(shown)”: \(advice)")
    }

    @Test(
        "reports a malformed proxy without its text, which may hold a password.",
        arguments: [
            ("https://proxy:3128", " is “****”"), ("http://proxy/x", " is “****”"), ("http://proxy:0", " is “****”"),
            ("http://proxy:70000", " is “****”"), ("http://user:hunter2@proxy:3128", " is “****”"),
            ("user:hunter2@proxy:3128", ""), ("proxy", ""),
        ]
    )
    func malformedProxy(text: String, shown: String) {
        let found = problems(environment: ["SIWAD_DELIVERY_PROXY": text])
        #expect(found == ["SIWAD_DELIVERY_PROXY\(shown): write http://host:port, without a user and a path"])
        #expect(!found.contains { $0.contains("hunter2") })
        #expect(problems(environment: ["SIWAD_DELIVERY_PROXY": "http://proxy.example:3128/"]).isEmpty)
    }

    @Test("never quotes a malformed secret.")
    func malformedSecret() {
        #expect(
            problems(environment: ["SIWAD_DATABASE_URL": "mysql://root:geheim@db"])
                == [
                    "SIWAD_DATABASE_URL: write a libpq URI such as postgres://siwad@localhost/siwa, or host=… dbname=…"
                ]
        )
    }

    @Test("reports the malformed entry of a list of apps.")
    func malformedApps() throws {
        let problem = try #require(problems(environment: ["SIWAD_APPS": "com.example.app"]).first)
        #expect(problem.hasPrefix("SIWAD_APPS: entry 1 “com.example.app” has no team id; expected TEAMID/"))
    }

    @Test("reports unknown keys of the environment and the file, and suggests the nearest known key.")
    func unknown() {
        let found = problems(
            environment: ["SIWAD_LISTN": "x", "SIWAD_COLOUR": "x"],
            files: ["siwad.yaml": "lissten: x\nanything: y\nlisten: 127.0.0.1:1"]
        )
        #expect(
            found == [
                "siwad.yaml, line 1: unknown setting “lissten”: did you mean listen?",
                "siwad.yaml, line 2: unknown setting “anything”: siwad config lists the known ones",
                "unknown setting “SIWAD_COLOUR” in the environment: siwad config lists the known ones",
                "unknown setting “SIWAD_LISTN” in the environment: did you mean SIWAD_LISTEN?",
            ]
        )
    }

    @Test("reports an unknown key without a value, and does not set a known key without a value.")
    func withoutValue() throws {
        #expect(
            problems(files: ["siwad.yaml": "lissten:\nanything: null\nspool_colour: ~\n"])
                == [
                    "siwad.yaml, line 1: unknown setting “lissten”: did you mean listen?",
                    "siwad.yaml, line 2: unknown setting “anything”: siwad config lists the known ones",
                    "siwad.yaml, line 3: unknown setting “spool_colour”: siwad config lists the known ones",
                ]
        )
        let unset = "listen:\ntls_key: null\nbatch-limit: ~\nkeys_url:\n#  left out\n"
        let configuration = try load(files: ["siwad.yaml": unset])
        for key in [SettingKey.listen, .tlsKey, .batchLimit, .keysURL] {
            #expect(configuration.origin(of: key) == .unset, "\(key)")
        }
    }

    @Test("names the flag or the line of the file with a malformed value.")
    func places() {
        #expect(problems(flags: [.batchLimit: "x"])[0].hasPrefix("--batch-limit is “x”: "))
        let file = ["siwad.yaml": "\n# a comment\nkeys_refresh: soon"]
        #expect(problems(files: file)[0].hasPrefix("keys_refresh (siwad.yaml, line 3) is “soon”: "))
        for text in ["issuer:\n- a\n- b", "{\"issuer\": [\"a\", \"b\"]}"] {
            #expect(
                problems(files: ["siwad.yaml": text])
                    == ["issuer (siwad.yaml, line 1) is “a,b”: write one value, not a list"]
            )
        }
    }

    @Test("requires a third connection if there is a spool.")
    func connections() {
        #expect(problems(environment: ["SIWAD_DATABASE_CONNECTIONS": "2"]) == [])
        #expect(
            problems(environment: ["SIWAD_DATABASE_CONNECTIONS": "2", "SIWAD_SPOOL_DIRECTORY": "/spool"]) == [
                "SIWAD_SPOOL_DIRECTORY needs SIWAD_DATABASE_CONNECTIONS to be at least 3: draining the spool takes a "
                    + "connection of its own"
            ]
        )
    }

    @Test("requires certificate and key together, and one source for a secret that no flag sets.")
    func pairs() {
        #expect(problems(environment: ["SIWAD_TLS_KEY": "/k"]) == ["SIWAD_TLS_KEY needs SIWAD_TLS_CERTIFICATE too"])
        #expect(
            problems(environment: ["SIWAD_TLS_CERTIFICATE": "/c"]) == ["SIWAD_TLS_CERTIFICATE needs SIWAD_TLS_KEY too"]
        )
        let both = ["SIWAD_DATABASE_URL": "host=a", "SIWAD_DATABASE_URL_FILE": "/x"]
        let problem = "SIWAD_DATABASE_URL and SIWAD_DATABASE_URL_FILE are both set: keep one of them"
        #expect(problems(environment: both, files: ["/x": "host=b"]) == [problem])
        for overridden in [both, ["SIWAD_DATABASE_URL_FILE": "/nowhere"]] {
            #expect(problems(flags: [.databaseURL: "host=c"], environment: overridden) == [])
        }
    }

    @Test("names a file that cannot be read.")
    func unreadable() {
        #expect(
            problems(environment: ["SIWAD_DATABASE_URL_FILE": "/nowhere"])
                == ["SIWAD_DATABASE_URL_FILE: /nowhere: No such file or directory: check the path"]
        )
        let sources = SettingsSources(environment: [:], configurationFile: "/nowhere/siwad.yaml")
        #expect(throws: SettingsError("--config /nowhere/siwad.yaml: No such file or directory: check the path")) {
            try Configuration(from: sources)
        }
    }

    @Test("reports the first problem and the number of others.")
    func several() {
        #expect(SettingsError(problems: ["a"]).description == "a")
        #expect(SettingsError(problems: ["a", "b"]).description == "a (and 1 more problem: siwad config lists all)")
    }
}
