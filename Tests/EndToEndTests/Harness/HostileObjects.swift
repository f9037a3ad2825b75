import Foundation

/// What a role that may create objects in `public` could put in the way: functions and operators with the names and the
/// arguments of PostgreSQL's own. Each of them counts its call and fails.
enum HostileObjects {
    /// How often one of them was called; NULL for never.
    static let calls = "SELECT CASE WHEN is_called THEN last_value END::text FROM public.hostile_calls"

    /// SQL that creates an overload of every function and operator that siwad's own SQL mentions, also with texts in place
    /// of other types, and makes every later session of the database find them before PostgreSQL's.
    static func script(database: String) throws -> String {
        let (functions, operators) = try mentioned()
        return """
            CREATE SEQUENCE public.hostile_calls;
            GRANT USAGE ON SEQUENCE public.hostile_calls TO PUBLIC;
            CREATE FUNCTION pg_temp.attempt(statement text) RETURNS void LANGUAGE plpgsql AS $attempt$
            BEGIN
                EXECUTE statement;
            EXCEPTION
                -- Not every function of PostgreSQL's can be imitated: internal types, polymorphic results.
                WHEN invalid_function_definition OR wrong_object_type OR feature_not_supported OR duplicate_function
                    OR datatype_mismatch OR undefined_object OR invalid_object_definition THEN NULL;
            END $attempt$;
            DO $install$
            DECLARE
                body constant text :=
                    'LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $b$ BEGIN
                        PERFORM nextval(''public.hostile_calls''); RAISE EXCEPTION ''hostile object called''; END $b$';
                f record;
            BEGIN
                FOR f IN
                    SELECT
                        p.proname AS name, oidvectortypes(p.proargtypes) AS arguments, p.pronargs AS count,
                        CASE WHEN p.provariadic = 0 THEN p.pronargs ELSE p.pronargs + 6 END AS most,
                        CASE WHEN p.proretset THEN 'SETOF ' ELSE '' END || format_type(p.prorettype, NULL) AS result
                    FROM pg_proc AS p
                    WHERE p.pronamespace = 'pg_catalog'::regnamespace
                        AND p.proname = ANY ('{\(functions.joined(separator: ","))}'::text[])
                LOOP
                    PERFORM pg_temp.attempt(
                        format('CREATE FUNCTION public.%I(%s) RETURNS %s %s', f.name, f.arguments, f.result, body));
                    FOR n IN f.count..f.most LOOP
                        PERFORM pg_temp.attempt(
                            format(
                                'CREATE FUNCTION public.%I(%s) RETURNS %s %s',
                                f.name, array_to_string(array_fill('text'::text, ARRAY[n]), ', '), f.result, body));
                    END LOOP;
                END LOOP;
                FOR f IN
                    SELECT
                        o.oprname AS name, 'hostile_' || o.oid AS function, format_type(o.oprleft, NULL) AS lhs,
                        format_type(o.oprright, NULL) AS rhs, format_type(o.oprresult, NULL) AS result, o.oprleft = 0 AS is_prefix
                    FROM pg_operator AS o
                    WHERE o.oprnamespace = 'pg_catalog'::regnamespace
                        AND o.oprname = ANY ('{\(operators.map { "\"\($0)\"" }.joined(separator: ","))}'::text[])
                LOOP
                    PERFORM pg_temp.attempt(
                        format(
                            'CREATE FUNCTION public.%I(%s) RETURNS %s %s',
                            f.function, CASE WHEN f.is_prefix THEN f.rhs ELSE f.lhs || ', ' || f.rhs END, f.result, body));
                    PERFORM pg_temp.attempt(
                        format(
                            'CREATE OPERATOR public.%s (%s RIGHTARG = %s, FUNCTION = public.%I)',
                            f.name, CASE WHEN f.is_prefix THEN '' ELSE 'LEFTARG = ' || f.lhs || ',' END, f.rhs, f.function));
                END LOOP;
            END $install$;
            ALTER DATABASE "\(database)" SET search_path = public, pg_catalog;
            """
    }

    /// The words before a parenthesis, and the operators, in the migrations and in the sources that hold SQL. Names that
    /// PostgreSQL doesn't know, of Swift, do no harm.
    private static func mentioned() throws -> (functions: [String], operators: [String]) {
        let root = URL(filePath: #filePath).deletingLastPathComponent().appending(path: "../../..").standardized
        var text = ""
        for folder in ["Schema/Migrations", "Sources/AccountStore", "Sources/Postgres", "Sources/siwad"] {
            let files = FileManager.default.enumerator(
                at: root.appending(path: folder),
                includingPropertiesForKeys: nil
            )
            for case let file as URL in files ?? .init() where ["sql", "swift"].contains(file.pathExtension) {
                text += try String(contentsOf: file, encoding: .utf8)
            }
        }
        // What AT TIME ZONE calls.
        var functions: Set<String> = ["timezone"]
        for match in text.matches(of: /([a-z_][a-z0-9_]*)\(/) { functions.insert(String(match.1)) }
        var operators: Set<String> = []
        for match in text.matches(of: /[-+*\/<>=~!@#%^&|]+/) { operators.insert(String(match.0)) }
        return (functions.sorted(), operators.filter { $0.count < 5 }.sorted())
    }
}
