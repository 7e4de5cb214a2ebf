package matrix;

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;

/** The Java side of an adapter: requests as JSON lines on standard input, answers on standard output. */
public abstract class Adapter {
    /** The client's API has no such operation. */
    static class NotOffered extends Exception {
        NotOffered(String what) {
            super("no " + what);
        }
    }

    abstract void connect(Map<String, Object> r) throws Exception;

    /** Every operation but connect and parallel. Null is an answer without content. */
    abstract Map<String, Object> ask(String op, Map<String, Object> r) throws Exception;

    static String text(Map<String, Object> r, String field) {
        return (String) r.get(field);
    }

    static long number(Map<String, Object> r, String field) {
        return (Long) r.get(field);
    }

    private void parallel(Map<String, Object> r) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(8);
        List<Future<?>> work = new ArrayList<>();
        for (Object p : (List<?>) r.get("puts")) {
            List<?> pair = (List<?>) p;
            work.add(pool.submit(() -> ask("put", Map.of("local", pair.get(0), "path", pair.get(1)))));
        }
        for (Object p : (List<?>) r.get("gets")) {
            List<?> pair = (List<?>) p;
            work.add(pool.submit(() -> ask("get", Map.of("path", pair.get(0), "local", pair.get(1)))));
        }
        pool.shutdown();
        for (Future<?> w : work) {
            w.get();
        }
    }

    void serve() throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = in.readLine()) != null; ) {
            Map<String, Object> answer = new LinkedHashMap<>();
            try {
                @SuppressWarnings("unchecked")
                Map<String, Object> r = (Map<String, Object>) new Json(line).value();
                String op = text(r, "op");
                Map<String, Object> got = null;
                if (op.equals("connect")) {
                    connect(r);
                } else if (op.equals("parallel")) {
                    parallel(r);
                } else {
                    got = ask(op, r);
                }
                answer = got == null ? answer : got;
            } catch (NotOffered e) {
                answer.put("na", e.getMessage());
            } catch (Throwable e) {
                e.printStackTrace();
                answer.put("error", String.valueOf(e));
            }
            out.println(Json.text(answer));
        }
        System.exit(0);
    }

    public static void main(String[] args) throws Exception {
        (args[0].equals("smbj") ? new Smbj() : new JcifsNg()).serve();
    }
}
