package matrix;

import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** As much of JSON as requests and answers have. */
final class Json {
    private final String s;
    private int at;

    Json(String s) {
        this.s = s;
    }

    private char next() {
        while (s.charAt(at) == ' ') {
            at++;
        }
        return s.charAt(at);
    }

    Object value() {
        switch (next()) {
            case '{': {
                Map<String, Object> map = new LinkedHashMap<>();
                at++;
                while (next() != '}') {
                    String key = (String) value();
                    next();
                    at++;
                    map.put(key, value());
                    if (next() == ',') {
                        at++;
                    }
                }
                at++;
                return map;
            }
            case '[': {
                List<Object> list = new ArrayList<>();
                at++;
                while (next() != ']') {
                    list.add(value());
                    if (next() == ',') {
                        at++;
                    }
                }
                at++;
                return list;
            }
            case '"':
                return string();
            default: {
                int from = at;
                while (at < s.length() && ",]} ".indexOf(s.charAt(at)) < 0) {
                    at++;
                }
                String word = s.substring(from, at);
                return word.equals("true") ? Boolean.TRUE : word.equals("false") ? Boolean.FALSE : word.equals("null") ? null : (Object) Long.parseLong(word);
            }
        }
    }

    private String string() {
        StringBuilder b = new StringBuilder();
        at++;
        for (char c; (c = s.charAt(at++)) != '"'; ) {
            if (c != '\\') {
                b.append(c);
                continue;
            }
            c = s.charAt(at++);
            if (c == 'u') {
                b.append((char) Integer.parseInt(s.substring(at, at + 4), 16));
                at += 4;
            } else {
                b.append(c == 'n' ? '\n' : c == 't' ? '\t' : c);
            }
        }
        return b.toString();
    }

    static String text(Object v) {
        StringBuilder b = new StringBuilder();
        if (v instanceof Map<?, ?> map) {
            b.append('{');
            for (Iterator<? extends Map.Entry<?, ?>> i = map.entrySet().iterator(); i.hasNext(); ) {
                Map.Entry<?, ?> e = i.next();
                b.append(text(e.getKey())).append(':').append(text(e.getValue())).append(i.hasNext() ? "," : "");
            }
            return b.append('}').toString();
        }
        if (v instanceof List<?> list) {
            b.append('[');
            for (int i = 0; i < list.size(); i++) {
                b.append(i == 0 ? "" : ",").append(text(list.get(i)));
            }
            return b.append(']').toString();
        }
        if (v == null || v instanceof Number || v instanceof Boolean) {
            return String.valueOf(v);
        }
        b.append('"');
        for (char c : v.toString().toCharArray()) {
            if (c == '"' || c == '\\') {
                b.append('\\').append(c);
            } else if (c < ' ') {
                b.append(String.format("\\u%04x", (int) c));
            } else {
                b.append(c);
            }
        }
        return b.append('"').toString();
    }
}
