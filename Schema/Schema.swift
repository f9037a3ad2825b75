package import Postgres

/// The migrations of the PostgreSQL schema `siwa`, carried in the binary.
package enum Schema {
    /// The schema that everything is in.
    package static let name = "siwa"

    /// All migrations, the first first. Forward only: an applied one is never changed.
    package static let migrations: [Migration] = [
        Migration(number: 1, name: "accounts", sql: text(PackageResources._001_accounts_sql)),
        Migration(number: 2, name: "sessions", sql: text(PackageResources._002_sessions_sql)),
        Migration(number: 3, name: "notifications", sql: text(PackageResources._003_notifications_sql)),
        Migration(number: 4, name: "operations", sql: text(PackageResources._004_operations_sql)),
        Migration(number: 5, name: "functions", sql: text(PackageResources._005_functions_sql)),
        Migration(number: 6, name: "roles", sql: text(PackageResources._006_roles_sql)),
        Migration(number: 7, name: "following", sql: text(PackageResources._007_following_sql)),
        Migration(number: 8, name: "changes", sql: text(PackageResources._008_changes_sql)),
        Migration(number: 9, name: "deliveries", sql: text(PackageResources._009_deliveries_sql)),
        Migration(number: 10, name: "sign_ins", sql: text(PackageResources._010_sign_ins_sql)),
        Migration(number: 11, name: "delivery_failures", sql: text(PackageResources._011_delivery_failures_sql)),
        Migration(number: 12, name: "postponed_retries", sql: text(PackageResources._012_postponed_retries_sql)),
        Migration(number: 13, name: "claims", sql: text(PackageResources._013_claims_sql)),
        Migration(number: 14, name: "due_claims", sql: text(PackageResources._014_due_claims_sql)),
    ]

    /// Every object of the schema as the migrations make it, for `siwad doctor`: a line for each, of its kind, name and
    /// definition. A test keeps it true.
    package static let catalog = text(PackageResources.catalog_txt)

    /// The JSON Schema of the events of the change feed, version 1.
    package static let events = text(PackageResources.v1_json)

    private static func text(_ bytes: [UInt8]) -> String {
        String(decoding: bytes, as: UTF8.self)
    }
}
