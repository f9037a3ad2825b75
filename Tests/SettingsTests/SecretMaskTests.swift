import Testing

@testable import Settings

@Suite("A connection string")
struct SecretMaskTests {
    @Test(
        "is taken as a URI of PostgreSQL or as keywords, whatever a value holds.",
        arguments: [
            ("postgres://h/db", true), ("postgresql:///db?host=/tmp", true), ("host=h password=a://b", true),
            ("dbname=siwa", true), ("mysql://h/db?a=b", false), ("https://h", false), ("siwa", false),
        ]
    )
    func forms(text: String, isTaken: Bool) {
        #expect((try? ValueParser.conninfo(text)) == (isTaken ? text : nil))
    }

    @Test(
        "is shown without its passwords.",
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
            ("postgres://h/db?a=b&SSL%70ASSWORD=x&c=%zz%4", "postgres://h/db?a=b&SSL%70ASSWORD=****&c=%zz%4"),
            ("postgres://h/db?password=x&y?z&a=b", "postgres://h/db?password=****&****&a=b"),
            ("postgres://h/d=b?password=x=y?z", "postgres://h/d=b?password=****"),
            ("postgres://u@h/db?password=x:y@z", "postgres://u@h/db?password=****:****@z"),
            ("postgres://u@h/db?a=b:c@d&password=x", "postgres://u@h/db?a=b:****@d&password=****"),
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
}
