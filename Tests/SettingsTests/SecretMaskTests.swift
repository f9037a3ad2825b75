import Testing

@testable import Settings

@Suite("A connection string")
struct SecretMaskTests {
    @Test(
        "is a PostgreSQL URI or a list of keywords, with any values.",
        arguments: [
            ("postgres://h/db", true), ("postgresql:///db?host=/tmp", true), ("host=h password=a://b", true),
            ("dbname=siwa", true), ("mysql://h/db?a=b", false), ("https://h", false), ("siwa", false),
        ]
    )
    func forms(text: String, isTaken: Bool) {
        #expect((try? ValueParser.conninfo(text)) == (isTaken ? text : nil))
    }

    @Test(
        "is printed without passwords.",
        arguments: [
            ("postgres://localhost/siwa", "postgres://localhost/siwa"),
            ("postgres://u@localhost/siwa", "postgres://u@localhost/siwa"),
            ("postgres://u:p@localhost:5432/siwa", "postgres://u:****@localhost:5432/siwa"),
            ("postgres://u:p@w/x@localhost/siwa", "postgres://u:****@localhost/siwa"),
            ("postgresql:///siwa?host=/tmp&password=p&user=u", "postgresql:///siwa?host=/tmp&password=****&user=u"),
            ("postgres://u:p?w@host/db", "postgres://u:****@host/db"),
            ("postgres://u:x@y?z@h/db", "postgres://u:****@h/db"),
            ("postgres://u:x?y&z=@h/db?sslmode=require", "postgres://u:****@h/db?sslmode=require"),
            ("postgres://u@h:5432/db", "postgres://u@h:5432/db"),
            ("postgres://h/db?%70assword=sekret", "postgres://h/db?%70assword=****"),
            ("postgres://h/db?pass%77ord=x", "postgres://h/db?pass%77ord=****"),
            ("postgres://h/db?a=b&SSL%70ASSWORD=x&c=%zz%4", "postgres://h/db?a=****&****&****"),
            ("postgres://h/db?password=x&y?z&a=b", "postgres://h/db?password=****&****&****"),
            ("postgres://h/d=b?password=x=y?z", "postgres://h/d=b?password=****"),
            ("postgres://u@h/db?password=x:y@z", "postgres://u@h/db?password=****"),
            ("postgres://u@h/db?a=b:c@d&password=x", "postgres://****"),
            ("host=/tmp dbname=siwa", "host=/tmp dbname=siwa"),
            ("host=h password=a://b?c@d dbname=x", "host=h password=**** dbname=x"),
            ("host=a password='it\\'s a' dbname=b", "host=a password=**** dbname=b"),
            ("host = a password = secret", "host=a password=****"),
            ("host=a secret", "****"), ("host=a passwordd=secret user=u", "host=a passwordd=**** user=u"),
            ("host=a password=sec secret dbname=app", "****"),
            ("postgres://h/db?passwordd=x", "postgres://h/db?passwordd=****"),
        ]
    )
    func masked(text: String, shown: String) {
        let masked = SecretMask.masked(conninfo: text)
        #expect(masked == shown || (shown == "****" && !masked.contains("secret")))
    }

    @Test(
        "is printed without values of keywords that may hold a secret.",
        arguments: [
            "password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key", "options",
            "some_later_token", "PASSWORD",
        ]
    )
    func unknownKeywords(keyword: String) {
        for text in [
            "host=h \(keyword)=sekret user=u", "\(keyword) = 'sek ret sekret' host=h", "\(keyword)=sekret",
            "postgresql://u@h/db?\(keyword)=sekret", "postgresql://h?sslmode=require&\(keyword)=sekret",
            "postgresql:///?\(keyword)=sekret&host=h", "postgresql://u@h/db?\(keyword)=x@sekret&sekret=y",
            "postgresql://h/db?%\(String(keyword.utf8.first ?? 0, radix: 16))\(keyword.dropFirst())=sekret",
        ] {
            let masked = SecretMask.masked(conninfo: text)
            #expect(!masked.contains("sek"), "\(masked)")
            #expect(masked.contains("****"))
        }
    }

    @Test(
        "is printed without a password if it is an incomplete URI.",
        arguments: [
            ("postgresql://:sekret@/db", "postgresql://:****@/db"),
            ("postgresql://u:sekret@/db", "postgresql://u:****@/db"),
            ("postgresql://u:sekret@", "postgresql://u:****@"),
            ("postgresql://u:sekret@?user=x", "postgresql://u:****@?user=x"),
            ("postgresql://u:sekret", "postgresql://****"), ("postgresql://u:sekret/db", "postgresql://****"),
            ("postgresql://?password=sekret", "postgresql://?password=****"),
            ("postgresql:///db?user=u&password=sekret", "postgresql:///db?user=u&password=****"),
            ("postgresql:///db:sekret", "postgresql://****"), ("postgresql://u/sekret@h/db", "postgresql://****"),
            ("postgresql://u:1234", "postgresql://u:1234"),
        ]
    )
    func withoutHost(text: String, shown: String) {
        #expect(SecretMask.masked(conninfo: text) == shown)
    }

    @Test(
        "is printed unchanged if all its keywords are harmless.",
        arguments: [
            "postgresql://u@h1:5432,h2:5433/db?target_session_attrs=read-write&sslmode=verify-full&sslrootcert=/a/b.pem",
            "postgresql://u@[2001:db8::1]:5432/db", "postgresql://%2Fvar%2Frun/db", "postgresql:///db?host=/var/run",
            "host=/var/run dbname=app user=u sslmode=verify-full channel_binding=require require_auth=scram-sha-256",
        ]
    )
    func harmless(text: String) {
        #expect(SecretMask.masked(conninfo: text) == text)
    }

    @Test(
        "is repeated in commands without its password.",
        arguments: [
            ("postgres://u:geheim@h/db", "postgres://u@h/db"), ("postgres://u@h/db", "postgres://u@h/db"),
            ("postgres://h/db?password=geheim&user=u", "postgres://h/db?user=u"),
            ("postgres://h/db?user=u&password=geheim", "postgres://h/db?user=u"),
            ("postgres://h/db?password=geheim", "postgres://h/db"), ("password=geheim host=h", "host=h"),
            ("host='/a b' password='ge heim' dbname=d", "host='/a b' dbname=d"),
            ("host=h passwd=geheim", "host=h passwd=****"),
        ]
    )
    func withoutPassword(text: String, repeated: String) {
        #expect(SettingKey.databaseURL.withoutPassword(text) == repeated)
    }
}
